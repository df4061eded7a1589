"""What happens between the rollouts and the estimator: whole groups, infrastructure limits, step metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isnan

import pytest

from ramet.errors import InfraError, PluginError, RametError
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.scoring import (
    UNJUDGED,
    ScoredGroup,
    ScoredRollout,
    Scorer,
    WeightedReward,
    check_failures,
    n_unjudged,
)
from ramet.testing.doubles import answered_rollout
from ramet.train.groups import (
    check_groups,
    check_infrastructure,
    play,
    reward_metrics,
    source_metrics,
    warn_of_broken_tools,
)
from ramet.types import (
    CallStatus,
    Fault,
    Group,
    PrefixSource,
    Rollout,
    Task,
    ToolRecord,
    per_rollout,
    user_prompt,
)

LOST = Fault(where="tool:search", message="the provider did not answer")


def task(name: str = "t") -> Task:
    return Task(id=name, prompt=user_prompt("1+1"), answer=("2",))


def scored(rewards: Sequence[float | None], name: str = "t") -> ScoredGroup:
    """A group with these rewards; None means a rollout that infrastructure failed."""
    one = task(name)
    rollouts = []
    for i, reward in enumerate(rewards):
        rollout = replace(answered_rollout(one, "2"), id=str(i), fault=LOST if reward is None else None)
        parts = {} if reward is None else {"match": reward}
        rollouts.append(ScoredRollout(rollout=rollout, reward=reward, parts=parts))
    return ScoredGroup(task=one, rollouts=tuple(rollouts))


def test_a_masked_rollout_leaves_the_means() -> None:
    metrics = reward_metrics([scored([1.0, 3.0, 2.0, None])])
    assert metrics["reward/mean"] == 2.0
    assert metrics["reward/match"] == 2.0
    assert metrics["rollout/masked_share"] == 0.25


def test_the_mean_of_roots_leaves_out_what_began_with_tokens_of_others() -> None:
    """Neither forks nor rollouts with stored prefixes are drawn from the prompt."""
    group = scored([1.0, 0.0, 0.0, None])
    root, fork, stored, masked = group.rollouts
    fork = replace(fork, rollout=replace(fork.rollout, parent="0", fork_turn=0))
    source = PrefixSource(step=1, rollout="0", turns=1, opened_step=1, opened_root="0")
    stored = replace(stored, rollout=replace(stored.rollout, prefix=source))
    filled = replace(root, rollout=replace(root.rollout, id="4", stats={"filled": 1.0}), reward=0.5)
    metrics = reward_metrics([replace(group, rollouts=(root, fork, stored, masked, filled))])
    assert metrics["reward/roots_mean"] == 1.0 and metrics["reward/mean"] == 0.375
    assert isnan(reward_metrics([replace(group, rollouts=(fork,))])["reward/roots_mean"])


def test_tasks_without_forks_weigh_no_more_in_the_mean_of_roots() -> None:
    """Their budget is filled from the prompt, so that they have more rollouts from there."""
    forked, filled = scored([0.0, 0.0, 0.0, 0.0]), scored([1.0, 1.0, 1.0, 1.0])
    forks = [replace(r, rollout=replace(r.rollout, parent="0", fork_turn=1)) for r in forked.rollouts[2:]]
    later = [replace(r, rollout=replace(r.rollout, stats={"filled": 1.0})) for r in filled.rollouts[2:]]
    forked = replace(forked, rollouts=(*forked.rollouts[:2], *forks))
    filled = replace(filled, rollouts=(*filled.rollouts[:2], *later))
    assert reward_metrics([forked, filled])["reward/roots_mean"] == 0.5


def test_tool_use_is_the_share_of_valid_rollouts_with_a_call() -> None:
    group = scored([1.0, 0.0, None])
    call = ToolRecord(
        turn=0, name="add", arguments={}, status=CallStatus.OK, text="2", wait_s=0.0, run_s=0.1, attempts=1
    )
    first = group.rollouts[0]
    used = replace(first, rollout=replace(first.rollout, tool_calls=(call,)))
    assert reward_metrics([replace(group, rollouts=(used, *group.rollouts[1:]))])["rollout/tool_use"] == 0.5


def test_groups_without_a_difference_give_no_signal() -> None:
    groups = [scored([1.0, 1.0]), scored([1.0, 0.0]), scored([1.0, None])]
    assert reward_metrics(groups)["group/no_signal_share"] == pytest.approx(2 / 3)


def test_a_step_without_any_valid_rollout_reports_no_reward() -> None:
    assert isnan(reward_metrics([scored([None, None])])["reward/mean"])


def test_too_many_infrastructure_failures_stop_the_run_and_name_the_commonest() -> None:
    groups = [scored([1.0, None, None, 0.0])]
    check_infrastructure(groups, limit=0.5)
    with pytest.raises(InfraError, match=r"2 of 4 rollouts .*max_masked_share=0.2.*tool:search: the provider"):
        check_infrastructure(groups, limit=0.2)


def test_a_defect_of_a_plugin_stops_the_run_as_one() -> None:
    [lost, *others] = scored([None, 1.0]).rollouts
    fault = Fault(
        where="plugin:step", message="rollout step mine.Step of plugin 'mine' (mine 1.0) raised KeyError: 'a'"
    )
    group = ScoredGroup(task=task(), rollouts=(replace(lost, rollout=replace(lost.rollout, fault=fault)), *others))
    with pytest.raises(PluginError) as raised:
        check_infrastructure([group], limit=0.2)
    assert str(raised.value) == (
        "rollout step mine.Step of plugin 'mine' (mine 1.0) raised KeyError: 'a'; 1 of 2 rollouts were masked (limit "
        "rollout.max_masked_share=0.2), most of them by this"
    )


def test_rollouts_that_rewards_could_not_judge_are_no_infrastructure_failures() -> None:
    """They have a limit of their own, below which they never stop a run: of four rollouts, one is more than a fifth."""
    [lost, *others] = scored([None, 1.0, 0.0, 1.0]).rollouts
    fault = Fault(where=f"{UNJUDGED}math", message="not judged")
    unjudged = replace(lost, rollout=replace(lost.rollout, fault=fault))
    group = ScoredGroup(task=task(), rollouts=(unjudged, *others))
    check_failures([group], [WeightedReward(name="math", plugin="mine", reward=per_rollout(lambda _: 1.0))])
    check_infrastructure([group], limit=0.2)
    assert n_unjudged([group]) == 1


def test_fewer_rollouts_than_asked_for_is_an_error_with_both_counts() -> None:
    one = task()
    group = Group(task=one, rollouts=(answered_rollout(one, "2"),))
    check_groups([group], [one], size=1)
    with pytest.raises(RametError, match="asked for 2 rollouts of 1 tasks, got 1 of 1"):
        check_groups([group], [one], size=2)


class Slow:
    """A rollout side whose groups come one after the other, 50 ms apart."""

    def __init__(self) -> None:
        self.played: list[str] = []

    def group_size(self, plan: RolloutPlan) -> int:
        return 1

    async def run(self, request: RolloutRequest, *, on_group: Callable[[Group], None]) -> list[Group]:
        groups = []
        for one in request.tasks:
            await asyncio.sleep(0.05)
            groups.append(Group(task=one, rollouts=(answered_rollout(one, "2"),)))
            on_group(groups[-1])
            self.played.append(one.id)
        return groups


class Constant:
    def __init__(self, value: float) -> None:
        self.value = value

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        return [self.value] * len(group)


def scorer(value: float) -> Scorer:
    return Scorer([WeightedReward(name="constant", plugin="test", reward=Constant(value))])


async def play_four(rollouts: Slow, value: float) -> list[ScoredGroup]:
    tasks = [task(str(i)) for i in range(4)]
    return await play(rollouts, scorer(value), RolloutRequest(tasks=tasks, step=1))  # type: ignore[arg-type]


def test_groups_come_back_in_the_order_of_their_tasks() -> None:
    groups = asyncio.run(play_four(Slow(), 1.0))
    assert [group.task.id for group in groups] == ["0", "1", "2", "3"]
    assert all(group.rollouts[0].reward == 1.0 for group in groups)


def test_a_reward_that_returns_nan_stops_the_playing_at_once() -> None:
    rollouts = Slow()
    with pytest.raises(PluginError, match="constant"):
        asyncio.run(play_four(rollouts, float("nan")))
    assert len(rollouts.played) <= 2


def test_each_data_source_has_its_reward() -> None:
    sources = {"math": [1.0, 0.0, None], "qa": [0.25], "dead": [None]}
    groups = []
    for source, rewards in sources.items():
        group = scored(rewards)
        groups.append(replace(group, task=replace(group.task, data_source=source)))
    assert source_metrics([*groups, scored([1.0])]) == {"source/math/reward": 0.5, "source/qa/reward": 0.25}


def test_a_function_tool_whose_calls_all_raised_is_named(caplog: pytest.LogCaptureFixture) -> None:
    counts = {"tool/sql/calls": 8.0, "tool/sql/exceptions/NameError": 8.0}
    warn_of_broken_tools(3, counts | {"tool/add/calls": 8.0, "tool/add/exceptions/KeyError": 7.0})
    (record,) = caplog.records
    assert record.getMessage().startswith("step 3: all 8 calls of tool 'sql' raised NameError")
