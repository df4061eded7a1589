"""What branch policies are asked, what they may start, and what forks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ramet.config.schema import ToolConfig
from ramet.engines.protocol import Completion, FirstReport, Request
from ramet.errors import ConfigError, PluginError, ToolError
from ramet.models.encoder import Encoder
from ramet.rollout.branching.builtin import NoBranching, RandomBranching
from ramet.rollout.config import RandomBranchConfig
from ramet.rollout.plan import RolloutPlan
from ramet.testing import check_branch_policy
from ramet.testing.doubles import Reply, ScriptedEngine, ScriptedPolicy, echo_tool
from ramet.types import (
    AfterTool,
    CallStatus,
    CallView,
    Finished,
    FirstTokens,
    Fork,
    Idle,
    Need,
    Start,
    StartRoots,
    StopReason,
)

Play = Callable[..., Any]
ANSWER = "<answer>2</answer>"


def two_calls(task: str, path: str, turn: int) -> Reply:
    text = f"<python>{path} {turn}</python>" if turn < 2 else ANSWER
    return Reply(text=text, entropies=(float(turn), 0.5), rest_s=0.005)


def fork_once(event: type = FirstTokens, turn: int = 1, **fork: Any) -> ScriptedPolicy:
    return ScriptedPolicy(1, {(event, "0", turn): [Fork(**{"rollout": "0", "turn": turn, **fork})]})


@pytest.mark.parametrize("policy", [NoBranching(), RandomBranching(RandomBranchConfig())])
def test_the_built_in_policies_keep_the_contract(policy: Any) -> None:
    check_branch_policy(policy)


def test_without_branching_all_rollouts_are_roots(play: Play) -> None:
    assert [r.id for r in play(two_calls, group_size=11).rollouts] == [str(i) for i in range(11)]


@pytest.mark.parametrize("event", [FirstTokens, AfterTool])
def test_a_fork_shares_its_parents_segments(play: Play, event: type) -> None:
    parent, fork = play(two_calls, policy=fork_once(event), group_size=2).rollouts
    assert (fork.id, fork.parent, fork.fork_turn, fork.n_shared) == ("0.0", "0", 1, 3)
    assert all(a is b for a, b in zip(fork.segments[:3], parent.segments[:3], strict=True))
    assert fork.segments[3] is not parent.segments[3]
    assert fork.segments[3].text == "<python>0.0 1</python>"
    assert fork.tool_calls[0] is parent.tool_calls[0]
    assert [call.arguments["text"] for call in fork.tool_calls] == ["0 0", "0.0 1"]


def test_a_fork_starts_at_once_while_its_parent_goes_on(play: Play) -> None:
    played = play(two_calls, policy=fork_once(), group_size=2)
    asked = [request.id.removeprefix("train/3/t/") for request in played.engine.requests]
    assert asked.index("0.0/1") < asked.index("0/2")
    request = played.engine.requests[asked.index("0.0/1")]
    assert (request.cache_key, request.fork_of) == ("train/3/t/0.0", "train/3/t/0")
    later = played.engine.requests[asked.index("0.0/2")]
    assert later.fork_of == ""


def test_a_fork_at_a_later_turn_and_a_fork_of_a_fork_take_their_paths(play: Play) -> None:
    policy = ScriptedPolicy(
        1,
        {
            (FirstTokens, "0", 1): [Fork(rollout="0", turn=1, n=2)],
            (FirstTokens, "0.1", 2): [Fork(rollout="0.1", turn=2)],
            (FirstTokens, "0", 2): [Fork(rollout="0", turn=2)],
        },
    )
    rollouts = {r.id: r for r in play(two_calls, policy=policy, group_size=5).rollouts}
    assert list(rollouts) == ["0", "0.0", "0.1", "0.1.0", "0.2"]
    assert (rollouts["0.1.0"].parent, rollouts["0.1.0"].fork_turn) == ("0.1", 2)
    assert rollouts["0.1.0"].segments[3] is rollouts["0.1"].segments[3]
    assert rollouts["0.2"].n_shared == 5


def test_a_finished_rollout_can_still_be_forked(play: Play) -> None:
    policy = ScriptedPolicy(1, {(Finished, "0", -1): [Fork(rollout="0", turn=2)]})
    parent, fork = play(two_calls, policy=policy, group_size=2).rollouts
    assert (fork.parent, fork.fork_turn) == ("0", 2)
    assert fork.segments[:5] == parent.segments[:5]


def test_a_fork_before_a_forks_own_turn_is_its_ancestors(play: Play) -> None:
    policy = ScriptedPolicy(
        1,
        {
            (FirstTokens, "0", 2): [Fork(rollout="0", turn=2)],
            (Finished, "0.0", -1): [Fork(rollout="0.0", turn=1)],
        },
    )
    rollouts = play(two_calls, policy=policy, group_size=3).rollouts
    assert [(r.id, r.parent, r.fork_turn) for r in rollouts] == [("0", None, None), ("0.0", "0", 2), ("0.1", "0", 1)]


def test_a_fork_inherits_the_count_of_tool_calls(play: Play) -> None:
    played = play(lambda t, p, turn: "<python>1</python>", policy=fork_once(), group_size=2, max_tool_calls=2)
    assert [(r.stop, len(r.tool_calls)) for r in played.rollouts] == [("call_limit", 2)] * 2


def test_events_come_in_the_order_of_a_rollouts_life_and_not_for_a_forks_first_turn(play: Play) -> None:
    policy = fork_once()
    play(two_calls, policy=policy, group_size=3)
    first = [e for e in policy.events if getattr(e, "rollout", "") == "0"]
    called = (CallView(name="python", status=CallStatus.OK, truncated=False),)
    assert first == [
        FirstTokens(rollout="0", turn=0, entropies=(0.0, 0.5, 0.0, 0.5, 0.0)),
        AfterTool(rollout="0", turn=1, calls=called),
        FirstTokens(rollout="0", turn=1, entropies=(1.0, 0.5, 1.0, 0.5, 1.0)),
        AfterTool(rollout="0", turn=2, calls=called),
        FirstTokens(rollout="0", turn=2, entropies=(2.0, 0.5, 2.0)),
        Finished(rollout="0", stop=StopReason.ANSWER),
    ]
    assert not [e for e in policy.events if isinstance(e, FirstTokens) and (e.rollout, e.turn) == ("0.0", 1)]
    assert [e for e in policy.events if isinstance(e, FirstTokens) and (e.rollout, e.turn) == ("0.0", 2)]


def test_only_the_first_k_entropies_are_reported(play: Play) -> None:
    policy = ScriptedPolicy(1)
    play(lambda *_: Reply(text="abcdefgh", entropies=(1.0, 2.0, 3.0)), policy=policy, group_size=2, first_tokens=2)
    assert policy.events[1] == FirstTokens(rollout="0", turn=0, entropies=(1.0, 2.0))


def test_a_view_tells_turns_forks_parents_and_budget(play: Play) -> None:
    policy = fork_once()
    play(two_calls, policy=policy, group_size=4)
    view = policy.view_at(Finished(rollout="0", stop=StopReason.ANSWER))
    root, fork = view.rollouts
    assert (view.budget, view.budget_left, view.task.id) == (4, 2, "t")
    assert (root.id, root.root, root.parent, root.finished, root.valid, root.n_forks) == ("0", "0", None, True, True, 1)
    assert [(t.index, t.ended, t.n_forks) for t in root.turns] == [(0, True, 0), (1, True, 1), (2, True, 0)]
    assert (fork.id, fork.root, fork.parent, fork.fork_turn, fork.finished) == ("0.0", "0", "0", 1, False)
    assert fork.turns[0].entropies == root.turns[0].entropies
    assert [t.n_tokens for t in root.turns] == [5, 5, 3]


def test_events_and_views_tell_how_the_calls_of_a_turn_ended(play: Play) -> None:
    policy = ScriptedPolicy(1)
    tool = echo_tool(error=ToolError("no"), fails=1)
    play(two_calls, policy=policy, tools={"python": (tool, ToolConfig(max_result_tokens=1))}, group_size=2)
    failed = (CallView(name="python", status=CallStatus.ERROR, truncated=True),)
    worked = (CallView(name="python", status=CallStatus.OK, truncated=True),)
    told = [e.calls for e in policy.events if isinstance(e, AfterTool) and e.rollout == "0"]
    assert told == [failed, worked]
    view = next(view for event, view in policy.asked if isinstance(event, Finished))
    assert [turn.calls for turn in view.rollouts[0].turns] == [failed, worked, ()]
    assert view.rollouts[0].stop is StopReason.ANSWER


def test_an_ended_turn_shows_all_its_entropies_to_a_policy_that_reads_them(play: Play) -> None:
    seen = {}
    for needs in (frozenset(), frozenset({Need.ENTROPY})):
        policy = ScriptedPolicy(1)
        policy.needs = needs
        play(two_calls, policy=policy, group_size=2, first_tokens=2)
        view = next(view for event, view in policy.asked if isinstance(event, Finished))
        seen[needs] = (
            [len(turn.entropies) for turn in view.rollouts[0].turns],
            [t.n_tokens for t in view.rollouts[0].turns],
        )
    assert seen[frozenset()] == ([2, 2, 2], [5, 5, 3])
    assert seen[frozenset({Need.ENTROPY})] == ([5, 5, 3], [5, 5, 3])


def test_budget_that_nobody_used_goes_to_fresh_roots_all_at_once(play: Play) -> None:
    played = play(two_calls, policy=ScriptedPolicy(2), group_size=6)
    assert [r.id for r in played.rollouts] == ["0", "1", "2", "3", "4", "5"]
    firsts = [r.id.split("/")[3] for r in played.engine.requests if r.id.endswith("/0")]
    assert sorted(firsts[2:]) == ["2", "3", "4", "5"]
    assert played.metrics["rollout/filled_per_group"] == 4


def test_a_policy_is_asked_at_idle_and_may_fork_then(play: Play) -> None:
    policy = ScriptedPolicy(2, {(Idle, "", -1): [Fork(rollout="1", turn=1, n=2)]})
    assert [r.id for r in play(two_calls, policy=policy, group_size=4).rollouts] == ["0", "1", "1.0", "1.1"]


def test_a_plan_without_branching_does_not_ask_the_policy(play: Play) -> None:
    policy = ScriptedPolicy(1)
    play(two_calls, policy=policy, group_size=3, plan=RolloutPlan(branch=False))
    assert policy.asked == []


def test_the_budget_is_never_exceeded_whatever_the_coins_say(play: Play, make_task: Any) -> None:
    for seed in range(5):
        policy = RandomBranching(RandomBranchConfig(initial_rollouts=2, probability=0.9))
        played = play(two_calls, policy=policy, tasks=[make_task(f"t{i}") for i in range(4)], group_size=5, seed=seed)
        assert [len(group.rollouts) for group in played.groups] == [5] * 4
        assert len({(g.task.id, r.id) for g in played.groups for r in g.rollouts}) == 20
        assert played.metrics["rollout/forks_per_group"] > 0


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([Fork(rollout="0", turn=1, n=4)], "it asks for 4 rollouts, budget left is 3"),
        ([Fork(rollout="0", turn=1, n=2), StartRoots(n=2)], "it asks for 4 rollouts, budget left is 3"),
        ([Fork(rollout="7", turn=1)], "no such rollout, only 0"),
        ([Fork(rollout="0", turn=0)], "turns 1 to 1; for turn 0 use StartRoots"),
        ([Fork(rollout="0", turn=2)], "turns 1 to 1"),
        ([StartRoots(n=-1)], "n must not be negative"),
        (["fork please"], "'fork please' is not a branch action"),
    ],
)
def test_a_policy_that_asks_for_what_cannot_be_stops_the_run_and_is_named(
    play: Play, actions: list[Any], message: str
) -> None:
    with pytest.raises(PluginError, match=f"ScriptedPolicy .* answered .*{message}"):
        play(two_calls, policy=ScriptedPolicy(1, {(FirstTokens, "0", 1): actions}), group_size=4)


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (StartRoots(n="1"), "n is '1', not an int"),  # type: ignore[arg-type]
        (StartRoots(n=1.0), "n is 1.0, not an int"),  # type: ignore[arg-type]
        (Fork(rollout="0", turn=1.0), "turn is 1.0, not an int"),  # type: ignore[arg-type]
        (Fork(rollout="0", turn=1, token=None), "token is None, not an int"),  # type: ignore[arg-type]
        (Fork(rollout=["0"], turn=1), "rollout is ['0'], not the id of a rollout, which is a string"),  # type: ignore[arg-type]
    ],
)
def test_actions_of_the_wrong_type_name_the_policy(play: Play, action: Any, problem: str) -> None:
    class Strange:
        def decide(self, event: Any, group: Any, rng: Any) -> Any:
            return [action]

    with pytest.raises(PluginError) as caught:
        play(two_calls, policy=Strange(), group_size=4)
    line = f"core/tests/rollout/test_branching.py:{Strange.decide.__code__.co_firstlineno}"
    assert str(caught.value) == (
        f"branch policy {Strange.__module__}.{Strange.__qualname__} answered Start() wrongly: {action}: {problem}: "
        "return a list of StartRoots, Fork and StartFrom within group.budget_left, Stop and Done, [] for nothing "
        f"({line})"
    )


def test_a_policy_that_answers_none_is_told_what_to_return(play: Play) -> None:
    class Nothing:
        def decide(self, event: Any, group: Any, rng: Any) -> Any:
            return None

    with pytest.raises(PluginError) as caught:
        play(two_calls, policy=Nothing(), group_size=4)
    line = f"core/tests/rollout/test_branching.py:{Nothing.decide.__code__.co_firstlineno}"
    name = f"{Nothing.__module__}.{Nothing.__qualname__}"
    assert str(caught.value).startswith(f"branch policy {name} answered Start() wrongly: None is not a branch action: ")
    assert str(caught.value).endswith(f" ({line})")


def test_a_policy_that_raises_stops_the_run_and_is_named(play: Play) -> None:
    class Raises:
        def decide(self, event: Any, group: Any, rng: Any) -> Any:
            if isinstance(event, FirstTokens):
                raise IndexError("no turn")
            return [StartRoots(n=1)] if isinstance(event, Start) else []

    with pytest.raises(PluginError, match=r"Raises raised IndexError on FirstTokens.*no turn") as caught:
        play(two_calls, policy=Raises(), group_size=4)
    assert isinstance(caught.value.__cause__, IndexError)


def test_more_roots_than_rollouts_are_refused(play: Play) -> None:
    with pytest.raises(ConfigError, match=r"branch_policy\.params\.initial_rollouts: 9 .*, 4$"):
        play(two_calls, policy=RandomBranching(RandomBranchConfig(initial_rollouts=9)), group_size=4)


class Releases(ScriptedEngine):
    """Notes what was released when the fork's first tokens were there."""

    seen: list[str] | None = None

    async def generate(self, request: Request, on_first: Any = None) -> Completion:
        def noted(report: FirstReport) -> None:
            if request.fork_of:
                self.seen = list(self.released)
            on_first(report)

        return await super().generate(request, noted)


def test_a_prefix_is_kept_until_its_forks_have_sampled(play: Play, encoder: Encoder) -> None:
    def slow_fork(task: str, path: str, turn: int) -> Reply:
        return Reply(text="<python>1</python>" if turn == 0 else ANSWER, first_s=0.1 if path == "0.0" else 0.0)

    engine = Releases(slow_fork, encoder)
    parent, fork = play(None, engine=engine, policy=fork_once(), group_size=2).rollouts
    assert parent.stats["seconds"] < fork.stats["seconds"]
    assert engine.seen == []
    assert engine.released == ["train/3/t/0", "train/3/t/0.0"]
