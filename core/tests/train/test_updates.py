"""What the policy is updated with: the KL coefficient that the configuration asks for, and a schedule of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("torch")

from core.tests.train.test_step_record import TASK, Plain

from ramet.cluster.local import LocalRanks
from ramet.components.build import Components
from ramet.config.compose import compose
from ramet.config.schema import Config, KlEstimator, RewardConfig, TrainConfig
from ramet.models.tiny import make_tiny_model
from ramet.policy.advantages import GroupToLearn, LearnedGroup, learn_group
from ramet.policy.batching.rows import Floats, Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import CriticSpec
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.doubles import answered_rollout
from ramet.train.groups import StepClock
from ramet.train.learning import Learner
from ramet.train.preemption import Preemption
from ramet.train.run import TrainState
from ramet.train.specs import policy_spec
from ramet.train.step_rollouts import PlayedStep
from ramet.types import AdvantageEstimator, AdvantageInputs, AdvantageOutput, CriticOptions, Need


class PlainWithValues(Plain):
    needs: frozenset[Need] = frozenset({Need.VALUES})

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return replace(super().__call__(batch), returns=batch.values)


class Weighed(Plain):
    """Reads the weights of rewards."""

    scope: Literal["batch", "group"] = "group"

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        output = super().__call__(batch)
        return replace(output, advantages=output.advantages * batch.reward_weights["halved"])


class Updated:
    """Ranks that keep the KL coefficients of their updates. The policy is its reference, and has a critic."""

    def __init__(self) -> None:
        self.coefficients: list[float | None] = []

    async def call(self, function: Any, *arguments: Any) -> Any:
        return await getattr(self, function.__name__)(*arguments)

    async def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        self.coefficients.append(batch.kl_coef)
        return {"train/kl_reference": 0.0}

    async def update_taken(self, step: int) -> dict[str, float]:
        return {"train/kl_reference": 0.0}

    async def logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        return [row.engine_logprobs for row in rows]

    async def values(self, rows: Sequence[Row]) -> list[Floats]:
        return [row.engine_logprobs * 0 for row in rows]

    async def update_critic(self, batch: TrainBatch, step: int) -> dict[str, float]:
        return {}

    reference_logprobs = logprobs


def groups() -> list[ScoredGroup]:
    rollouts = [replace(answered_rollout(TASK, text), id=text) for text in ("a", "b")]
    scored = tuple(ScoredRollout(rollout=rollout, reward=float(i)) for i, rollout in enumerate(rollouts))
    return [ScoredGroup(task=TASK, rollouts=scored)]


@pytest.mark.parametrize("advantage", ["grpo", "remax", "weighed"])
def test_groups_that_are_learned_where_they_are_change_the_weights_as_a_batch_of_this_process(
    advantage: str, register: Callable[..., None], tmp_path: Path
) -> None:
    """With a reference. The groups of a step: one without a second valid rollout, one without a baseline, two more."""
    register("advantage", "weighed", Weighed)
    make_tiny_model(tmp_path / "model", seed=1, hidden=32, heads=2, layers=1, intermediate=32)
    options = [f"model.path={tmp_path}/model", "model.device=cpu", "train.kl_coef=0.1", "train.minibatches=2"]
    config = compose([*options, "engine=torch", f"advantage={advantage}"], job="train").config
    components = Components(config)
    config = replace(config, rewards={"halved": RewardConfig(weight=0.5)})
    [group] = groups()
    masked = tuple(replace(one, reward=one.reward or None) for one in group.rollouts)
    other = tuple(replace(one, reward=1.0 - float(one.reward or 0)) for one in reversed(group.rollouts))
    played = PlayedStep(
        groups=[replace(group, rollouts=masked), group, replace(group, rollouts=other), group], replaced=[]
    )
    greedy = [0.25, None, 0.5, 0.0] if advantage == "remax" else None

    async def learn(elsewhere: bool) -> tuple[dict[str, float], dict[str, Any]]:
        ranks = LocalRanks(policy_spec(config, components, 10), None)

        async def learn_groups(
            estimator: AdvantageEstimator, groups: Sequence[GroupToLearn], kl_coef: float
        ) -> list[LearnedGroup]:
            pairs = [learn_group(estimator, group) for group in groups]
            await ranks.call(PolicyRank.take, [batch for batch, _ in reversed(pairs)], kl_coef)
            return [learned for _, learned in pairs]

        learner = Learner(
            config,
            folder=tmp_path,
            ranks=ranks,
            critic=None,
            estimator=components.advantage,
            needs_reference=True,
            state=TrainState(data_fingerprint=""),
            preemption=Preemption(1.0),
            learn_groups=learn_groups if elsewhere else None,
        )
        metrics = await learner.learn(1, played, greedy, StepClock())
        weights = {name: tensor.tolist() for name, tensor in ranks.rank.weights()}
        await ranks.close()
        return {name: value for name, value in metrics.items() if not name.endswith("_s")}, weights

    metrics, weights = asyncio.run(learn(elsewhere=True))
    assert metrics["train/rows"] == (5 if greedy else 6)
    assert (metrics, weights) == asyncio.run(learn(elsewhere=False))


@pytest.mark.parametrize(("target", "used"), [(0.1, 0.7), (None, 0.2)])
def test_a_resumed_run_without_a_target_has_the_coefficient_of_its_configuration(
    target: float | None, used: float, tmp_path: Path
) -> None:
    """The checkpoint holds the coefficient that followed a target."""
    policy = Updated()
    learner = Learner(
        Config(train=TrainConfig(kl_coef=0.2, kl_target=target)),
        folder=tmp_path,
        ranks=policy,  # type: ignore[arg-type]
        critic=None,
        estimator=Plain(),
        needs_reference=False,
        state=TrainState(data_fingerprint="", kl_coef=0.7),
        preemption=Preemption(1.0),
    )
    asyncio.run(learner.learn(1, PlayedStep(groups=groups(), replaced=[]), None, StepClock()))
    assert policy.coefficients == [used]


def test_the_coefficient_follows_the_rollouts_that_are_left_of_groups_lost_with_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a replay, whose record has no tokens of the others."""
    monkeypatch.setattr("ramet.train.learning.KL_HORIZON", 4)
    config = Config(train=TrainConfig(kl_coef=0.2, kl_target=0.1))
    config.train.tasks_per_step, config.rollout.group_size = 2, 2
    estimator = Weighed()

    async def learn_groups(_: AdvantageEstimator, groups: Sequence[GroupToLearn], kl_coef: float) -> list[LearnedGroup]:
        return [learn_group(estimator, replace(groups[0], reward_weights={"halved": 0.5}))[1], LearnedGroup.none()]

    learner = Learner(
        config,
        folder=tmp_path,
        ranks=Updated(),  # type: ignore[arg-type]
        critic=None,
        estimator=estimator,
        needs_reference=False,
        state=(state := TrainState(data_fingerprint="")),
        preemption=Preemption(1.0),
        learn_groups=learn_groups,
    )
    played = PlayedStep(groups=groups() * 2, replaced=[])
    metrics = asyncio.run(learner.learn(1, played, None, StepClock()))
    assert (metrics["train/rows"], metrics["train/masked_rollouts"]) == (2, 2)
    assert state.kl_coef == pytest.approx(0.2 * (1 - 0.2 * 2 / 4))


def test_the_coefficient_stays_while_the_critic_alone_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy is its reference then, so the KL is far under any target."""
    monkeypatch.setattr("ramet.train.learning.KL_HORIZON", 2)
    config = Config(train=TrainConfig(kl_coef=0.2, kl_target=0.1, kl_estimator=KlEstimator.K1_REWARD, staleness=3))
    config.train.tasks_per_step, config.rollout.group_size = 1, 2
    critic = CriticSpec(
        model=config.model,
        policy=config.policy,
        train=config.train,
        options=CriticOptions(warmup_steps=2),
        total_steps=4,
        seed=1,
    )
    learner = Learner(
        config,
        folder=tmp_path,
        ranks=Updated(),  # type: ignore[arg-type]
        critic=critic,
        estimator=PlainWithValues(),
        needs_reference=True,
        state=TrainState(data_fingerprint=""),
        preemption=Preemption(1.0),
    )
    played = PlayedStep(groups=groups(), replaced=[])
    found = [asyncio.run(learner.learn(step, played, None, StepClock()))["train/kl_coef"] for step in range(1, 5)]
    assert found == pytest.approx([0.2, 0.2, 0.2, 0.2 * 0.8])


@pytest.mark.parametrize(("algorithm", "steps"), [("ppo", 20), ("grpo", 0)])
def test_the_policys_schedule_begins_after_the_critics_warm_up(algorithm: str, steps: int) -> None:
    options = [f"advantage.params.critic_warmup_steps={steps}"] if steps else []
    config = compose(["model.path=m", "engine=torch", f"algorithm={algorithm}", *options], job="train").config
    assert policy_spec(config, Components(config), 100).critic_warmup_steps == steps
