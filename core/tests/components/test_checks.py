"""What an algorithm needs and a run cannot give is refused before anything starts, with the whole message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from ramet.components import checks as checks_module
from ramet.components.build import Components
from ramet.components.checks import check_components, check_needs
from ramet.config.compose import compose
from ramet.config.schema import LossAggregation, RewardConfig
from ramet.engines.protocol import Capability
from ramet.errors import ConfigError, ConfigErrors, InfraError, PluginError
from ramet.evaluate.evaluation import prepare as prepare_evaluation
from ramet.models.tiny import make_tiny_model
from ramet.train.dry_run import _old_logprobs
from ramet.train.prepare import prepare
from ramet.types import BranchEvent, GroupView, Need, Rollout, StartRoots

Offer = Callable[..., None]
MODES = "token-mean, seq-mean-token-sum, seq-mean-token-mean, seq-mean-token-sum-norm, token-sum-norm"

FREE = "taken from the update's own forward pass, at no cost: a step has one optimiser step"
BEFORE = "computed before the update, by one more forward pass a step, since"


class Component:
    """A branch policy, and the callable of the other kinds, which is not called here."""

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> list[StartRoots]:
        return [StartRoots(n=group.budget_left)]

    def __call__(self, batch: object) -> object:
        raise NotImplementedError


@pytest.fixture
def offer(register: Callable[..., None]) -> Offer:
    """Offers a component `mine` of a kind, with these attributes."""
    return lambda kind, **attributes: register(kind, "mine", type("Mine", (Component,), attributes))


def problems(*overrides: str) -> list[str]:
    config = compose(["model.path=model", "engine=torch", *overrides], job="train").config
    return check_needs(Components(config), config)


def test_what_ships_is_fine() -> None:
    assert problems() == problems("algorithm=ppo") == problems("branch_policy=random") == []


@pytest.mark.parametrize(
    ("section", "needs", "problem"),
    [
        (
            "branch_policy",
            {Need.VALUES},
            "branch_policy=mine needs values, which is not given to it; allowed: earlier_turns, entropy, "
            "late_events, prefixes, rewards",
        ),
        (
            "policy_loss",
            {Need.VALUES},
            "policy_loss=mine needs values, which is not given to it; allowed: entropy, old_logprobs, reference",
        ),
        (
            "advantage",
            {Need.EARLIER_TURNS},
            "advantage=mine needs earlier_turns, which is not given to it; allowed: entropy, greedy_rollout, "
            "old_logprobs, probed, reference, rescored, values",
        ),
    ],
)
def test_a_need_that_is_not_served_is_refused(offer: Offer, section: str, needs: set[Need], problem: str) -> None:
    offer(section, needs=frozenset(needs))
    assert problems(f"{section}=mine") == [problem]


def test_what_an_agent_cannot_be_combined_with_is_refused(offer: Offer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("async def run(task, ctx): ...")
    offer("advantage", needs=frozenset())
    asked = [
        "rollout_step=function", f"rollout_step.params.function={tmp_path / 'agent.py'}:run", "advantage=mine",
        "tools=[from_row]", "rollout_step.params.port=8123", "cluster=ray", "cluster.rollout_workers=2", "rewards=[]",
    ]  # fmt: skip
    config = compose(["model.path=model", "engine=torch", *asked], job="train").config
    found = check_components(Components(config), config, training=True)
    assert [problem.partition(":")[0] for problem in found] == [
        "tools=[from_row]", "rollout_step.params.port=8123", "advantage=mine"
    ]  # fmt: skip
    assert "reads_threads = True" in found[-1]


@pytest.mark.parametrize("engine", ["torch", "openai"])
def test_what_a_model_on_a_server_rules_out_for_an_agent_is_one_warning(
    engine: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "agent.py").write_text("async def run(task, ctx): ...")
    agent = ["rollout_step=function", f"rollout_step.params.function={tmp_path / 'agent.py'}:run", "tools=[]"]
    config = compose(["model.path=model", f"engine={engine}", *agent], job="eval").config
    assert check_components(Components(config), config, training=False) == []
    assert len(caplog.messages) == (engine == "openai")
    assert all("no entropies" in text and "no token ids" in text for text in caplog.messages)


@pytest.mark.parametrize("needs", [Need.ENTROPY, [Need.ENTROPY], "entropy"])
def test_needs_that_are_not_a_set_are_named(offer: Offer, needs: object) -> None:
    offer("advantage", needs=needs)
    with pytest.raises(PluginError, match=r"needs is .*: set it to a frozenset"):
        problems("advantage=mine")


@pytest.mark.parametrize("least", ["two", 0, True])
def test_a_smallest_group_that_is_not_a_number_is_named(offer: Offer, least: object) -> None:
    offer("advantage", needs=frozenset(), min_group=least)
    config = compose(["model.path=model", "engine=torch", "advantage=mine"], job="train").config
    with pytest.raises(PluginError, match=rf"Mine: min_group is {least!r}: give a number of at least 1"):
        check_components(Components(config), config, training=True)


@pytest.mark.parametrize("name", ["mean", "unjudged_rollouts"])
def test_a_reward_named_as_a_metric_of_the_run_is_refused(name: str) -> None:
    config = compose(["model.path=model", "engine=torch"], job="train").config
    config.rewards = {name: RewardConfig(use="format")}
    with pytest.raises(ConfigError, match=rf"rewards\.{name}: the run itself logs reward/{name}"):
        _ = Components(config).scorer


def test_a_policy_that_needs_rewards_is_refused_with_rewards_of_whole_groups(offer: Offer) -> None:
    async def ranks(self: object, group: Sequence[Rollout]) -> list[float]:
        return [0.0] * len(group)

    offer("branch_policy", needs=frozenset({Need.REWARDS}))
    offer("rewards", __call__=ranks)
    assert problems("branch_policy=mine", "rewards=[format]") == []
    assert problems("branch_policy=mine", "rewards=[format,mine]") == [
        "rewards.mine: judges complete groups (per_rollout is False), and branch_policy=mine needs the reward of each "
        "rollout as soon as it ends; choose a reward that judges each rollout by itself, or another branch policy"
    ]


@pytest.mark.parametrize("policy", ["random", "value_guided", "token_entropy", "arpo"])
def test_a_budget_below_the_initial_rollouts_is_refused_before_the_start(policy: str) -> None:
    config = compose(
        ["model.path=m", f"branch_policy={policy}", "branch_policy.params.initial_rollouts=9"], job="train"
    ).config
    (problem,) = check_components(Components(config), config, training=True)
    assert "branch_policy.params.initial_rollouts: 9 " in problem


@pytest.mark.parametrize("section", ["advantage", "policy_loss", "branch_policy"])
def test_entropies_of_an_engine_that_reports_none_are_refused(
    offer: Offer, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(section, needs=frozenset({Need.ENTROPY}))
    assert problems(f"{section}=mine") == []
    others = frozenset(Capability) - {Capability.ENTROPY}
    monkeypatch.setattr(checks_module, "engine_capabilities", lambda config: others)
    assert problems(f"{section}=mine") == [f"{section}=mine needs entropies, and engine 'torch' reports none"]


def test_a_branch_policy_may_leave_its_needs_out(offer: Offer) -> None:
    offer("branch_policy")
    assert problems("branch_policy=mine") == []


@pytest.mark.parametrize("mode", LossAggregation)
def test_a_loss_may_demand_its_aggregation(offer: Offer, mode: LossAggregation) -> None:
    offer("policy_loss", needs=frozenset(), aggregation=frozenset({"token-mean", "seq-mean-token-mean"}))
    found = problems("policy_loss=mine", f"train.loss_aggregation={mode}")
    if mode in ("token-mean", "seq-mean-token-mean"):
        assert found == []
    else:
        assert found == [
            "policy_loss=mine is right only with train.loss_aggregation=seq-mean-token-mean or token-mean, got "
            f"{mode.value}"
        ]


@pytest.mark.parametrize("loss", ["gspo", "gmpo"])
def test_a_ratio_by_sequence_is_refused_with_weights_by_token(loss: str) -> None:
    modes = "seq-mean-token-mean or seq-mean-token-sum or seq-mean-token-sum-norm"
    [problem] = problems(f"policy_loss={loss}")
    assert problem.startswith(f"policy_loss={loss} ") and f"train.loss_aggregation={modes}, got token-mean" in problem
    assert problems(f"algorithm={loss}") == []


def test_an_aggregation_that_is_not_a_set_is_named(offer: Offer) -> None:
    offer("policy_loss", needs=frozenset(), aggregation="token-mean")
    with pytest.raises(PluginError, match="aggregation is 'token-mean': set it to a frozenset of texts"):
        problems("policy_loss=mine")


def test_an_aggregation_that_there_is_not_is_named(offer: Offer) -> None:
    offer("policy_loss", needs=frozenset(), aggregation=frozenset({"token-mean", "mean"}))
    assert problems("policy_loss=mine") == [
        f"policy_loss=mine allows train.loss_aggregation=mean, which there is not; there are: {MODES}"
    ]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], f"{FREE}; the ratio is 1: clipping does nothing (train.minibatches)"),
        (["policy_loss=mine"], FREE),
        (["train.minibatches=2"], f"{BEFORE} its 2 optimiser steps change the policy"),
        (["train.epochs=2"], f"{BEFORE} its 2 optimiser steps change the policy"),
        (["advantage=mine"], f"{BEFORE} advantage=mine reads them"),
        (["train.old_logprobs=engine"], "the engine's (train.old_logprobs=engine)"),
    ],
)
def test_the_plan_says_what_the_old_logprobs_costs(offer: Offer, overrides: list[str], said: str) -> None:
    offer("advantage", needs=frozenset({Need.OLD_LOGPROBS}))
    offer("policy_loss", needs=frozenset())
    config = compose(["model.path=model", "engine=torch", *overrides], job="train").config
    assert _old_logprobs(config, Components(config)) == said


def test_a_run_is_refused_for_all_of_it_at_once(offer: Offer, tmp_path: Path) -> None:
    offer("branch_policy", needs=frozenset({Need.VALUES}))
    offer("policy_loss", needs=frozenset(), aggregation=frozenset({"seq-mean-token-mean"}))
    model = make_tiny_model(tmp_path / "tiny", hidden=16, layers=1, heads=1, intermediate=16)
    overrides = [
        f"model.path={model}",
        "engine=torch",
        "branch_policy=mine",
        "policy_loss=mine",
        "data.train=[none.jsonl]",
    ]
    with pytest.raises(ConfigErrors) as caught:
        prepare(compose(overrides, job="train"))
    need, aggregation = (problem for problem in caught.value.problems if "=mine" in problem)
    assert need.startswith("branch_policy=mine needs values")
    assert aggregation.endswith(" train.loss_aggregation=seq-mean-token-mean, got token-mean")


def test_a_tool_set_that_cannot_be_reached_is_an_outage(offer: Offer, tmp_path: Path) -> None:
    """Its exit code says that the same command may succeed later. A mistake beside it is reported with it, as one."""

    async def refused(self: object) -> None:
        raise ConnectionRefusedError(9)

    async def aclose(self: object) -> None: ...

    offer("tools", open=refused, aclose=aclose)
    model = make_tiny_model(tmp_path / "tiny", hidden=16, layers=1, heads=1, intermediate=16)
    overrides = [f"model.path={model}", "engine=torch", "tools=[mine]", "rollout.max_response_tokens=8"]
    overrides += ["data.max_prompt_tokens=32"]
    for job, prepared in (("train", prepare), ("eval", prepare_evaluation)):
        data = ["data.train=[none.jsonl]", "rewards=[format]"] if job == "train" else ["benchmarks=[gsm8k]"]
        with pytest.raises(InfraError, match=r"tool 'mine' of plugin 'test'.* ConnectionRefusedError"):
            prepared(compose([*overrides, *data], job=job))
        with pytest.raises(ConfigErrors) as caught:
            prepared(compose([*overrides, *data, "rollout.max_response_tokens=4096"], job=job))
        assert len(caught.value.problems) > 1
