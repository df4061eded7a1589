"""What the policy is updated with: the KL coefficient that the configuration asks for, and a schedule of its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ramet.components.build import Components
from ramet.config.compose import compose
from ramet.config.schema import Config, TrainConfig
from ramet.policy.batching.train_batch import TrainBatch
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.rollouts import answered_rollout
from ramet.train.groups import StepClock
from ramet.train.learning import Learner
from ramet.train.preemption import Preemption
from ramet.train.run import TrainState
from ramet.train.specs import policy_spec
from ramet.train.step_rollouts import PlayedStep
from ramet.types import AdvantageInputs, AdvantageOutput, Need, Task, user_prompt

TASK = Task(id="t", prompt=user_prompt("?"))


class Plain:
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=torch.where(batch.mask, batch.rewards[:, None], 0.0))


class Updated:
    """A policy that keeps the KL coefficients of its updates."""

    def __init__(self) -> None:
        self.coefficients: list[float | None] = []

    async def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        self.coefficients.append(batch.kl_coef)
        return {"train/kl_reference": 0.0}


@pytest.mark.parametrize(("target", "used"), [(0.1, 0.7), (None, 0.2)])
def test_a_resumed_run_without_a_target_has_the_coefficient_of_its_configuration(
    target: float | None, used: float, tmp_path: Path
) -> None:
    """The checkpoint holds the coefficient that followed a target."""
    rollouts = [replace(answered_rollout(TASK, text), id=text) for text in ("a", "b")]
    scored = tuple(ScoredRollout(rollout=rollout, reward=float(i)) for i, rollout in enumerate(rollouts))
    policy = Updated()
    learner = Learner(
        Config(train=TrainConfig(kl_coef=0.2, kl_target=target)),
        folder=tmp_path,
        policy=policy,  # type: ignore[arg-type]
        critic=None,
        estimator=Plain(),
        needs_reference=False,
        state=TrainState(data_fingerprint="", kl_coef=0.7),
        preemption=Preemption(1.0),
    )
    played = PlayedStep(groups=[ScoredGroup(task=TASK, rollouts=scored)], replaced=[])
    asyncio.run(learner.learn(1, played, None, StepClock()))
    assert policy.coefficients == [used]


@pytest.mark.parametrize(("algorithm", "steps"), [("ppo", 20), ("grpo", 0)])
def test_the_policys_schedule_begins_after_the_critics_warm_up(algorithm: str, steps: int) -> None:
    options = [f"advantage.params.critic_warmup_steps={steps}"] if steps else []
    config = compose(["model.path=m", "engine=torch", f"algorithm={algorithm}", *options], job="train").config
    assert policy_spec(config, Components(config), 100).critic_warmup_steps == steps
