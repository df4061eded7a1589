"""States of tools fork with the policy: a fork finds that of its fork point, and each state is closed exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from ramet.config.schema import ToolConfig
from ramet.errors import ConfigError, InfraError, PluginError
from ramet.plugins import origin
from ramet.plugins.plugin_code import defined_at
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.testing.doubles import Reply, echo_tool
from ramet.types import (
    BranchAction,
    BranchEvent,
    Fault,
    Finished,
    FirstTokens,
    Fork,
    GroupView,
    Idle,
    Need,
    Start,
    StartRoots,
    Task,
    ToolCall,
    ToolResult,
)

Play = Callable[..., Any]
ANSWER = "<answer>2</answer>"
BOTH_ORDERS = pytest.mark.parametrize("deterministic", [False, True])


class State:
    def __init__(self, seed: int, count: int = 0) -> None:
        self.seed = seed
        self.count = count
        self.open = True


class Counter:
    """A tool that counts the calls of its rollout. It keeps all states that it ever gave out."""

    def __init__(self, forks: str = "copy") -> None:
        self.schema = echo_tool().schema
        self.forks = forks
        self.states: list[State] = []
        self.tasks: list[str] = []
        self.copied = 0
        self.calls: list[str] = []
        self.drift = 0  # added to what a replayed call returns

    async def open(self, task: Task, seed: int) -> State:
        await asyncio.sleep(0)
        self.tasks.append(task.id)
        self.states.append(State(seed))
        return self.states[-1]

    async def fork(self, state: State) -> State:
        assert state.open
        await asyncio.sleep(0.001)
        self.copied += 1
        self.states.append(State(state.seed, state.count))
        return self.states[-1]

    async def close(self, state: State) -> None:
        assert state.open, "closed twice"
        state.open = False

    async def __call__(self, call: ToolCall) -> ToolResult:
        assert call.state.open
        self.calls.append(call.rollout)
        call.state.count += 1
        drift = self.drift if call.rollout.endswith("0.0") else 0
        return ToolResult(text=str(call.state.count + drift))

    @property
    def left_open(self) -> int:
        return sum(state.open for state in self.states)


class Forks:
    """Starts roots, and forks once at a given event of rollout 0."""

    def __init__(
        self, on: type, turn: int, *, roots: int = 1, seen: int | None = None, n: int = 1, **needs: Any
    ) -> None:
        self.on, self.turn, self.roots, self.n = on, turn, roots, n
        self.seen = turn if seen is None else seen  # turn of the event
        self.needs = frozenset(needs.get("needs", ()))

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if isinstance(event, Start):
            return [StartRoots(n=self.roots)]
        about = getattr(event, "rollout", "0"), getattr(event, "turn", self.seen)
        if isinstance(event, self.on) and about == ("0", self.seen) and group.budget_left >= self.n:
            return [Fork(rollout="0", turn=self.turn, n=self.n)]
        return []


def three_calls(task: str, path: str, turn: int) -> Reply:
    """Rollout 1 is slow, so that in logical order what happens to rollout 0 is decided long after it happened."""
    text = "<python>x</python>" if turn < 3 else ANSWER
    return Reply(text=text, rest_s=0.06 if path == "1" and turn == 0 else 0.004)


def results(rollout: Any) -> list[str]:
    return [call.text for call in rollout.tool_calls]


def run(play: Play, tool: Any, policy: Any, script: Any = three_calls, **options: Any) -> dict[str, Any]:
    played = play(script, policy=policy, tools={"python": (tool, ToolConfig(retries=0, timeout_s=1.0))}, **options)
    return {rollout.id: rollout for rollout in played.rollouts}


@BOTH_ORDERS
@pytest.mark.parametrize("forks", ["copy", "replay"])
@pytest.mark.parametrize("roots", [1, 2])
def test_a_fork_sees_the_state_of_its_fork_point_while_its_parent_goes_on(
    play: Play, forks: str, deterministic: bool, roots: int
) -> None:
    tool = Counter(forks)
    rollouts = run(play, tool, Forks(FirstTokens, 1, roots=roots), group_size=roots + 1, deterministic=deterministic)
    assert results(rollouts["0"]) == ["1", "2", "3"]
    assert results(rollouts["0.0"]) == ["1", "2", "3"]
    assert tool.left_open == 0
    assert len({state.seed for state in tool.states}) == roots
    assert tool.copied == 0 or forks == "copy"


@BOTH_ORDERS
@pytest.mark.parametrize("turn", [1, 2, 3])
@pytest.mark.parametrize("on", [Finished, Idle])
def test_a_fork_of_a_finished_rollout_sees_the_state_of_its_turn(
    play: Play, on: type, turn: int, deterministic: bool
) -> None:
    tool = Counter()
    policy = Forks(on, turn, n=2, needs={Need.EARLIER_TURNS})

    def script(task: str, path: str, turn: int) -> Reply:
        return Reply(text="<python>x</python>" if turn < 3 or (path != "0" and turn < 5) else ANSWER)

    rollouts = run(play, tool, policy, script, group_size=3, deterministic=deterministic)
    assert results(rollouts["0"]) == ["1", "2", "3"]
    for fork in ("0.0", "0.1"):
        assert rollouts[fork].fork_turn == turn
        assert results(rollouts[fork]) == ["1", "2", "3", "4", "5"]
    assert tool.left_open == 0


@BOTH_ORDERS
def test_a_fork_of_a_fork_sees_the_state_of_its_fork_point(play: Play, deterministic: bool) -> None:
    class Chain(Forks):
        def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
            if isinstance(event, FirstTokens) and event.turn == len(event.rollout.split(".")) and group.budget_left:
                return [Fork(rollout=event.rollout, turn=event.turn)]
            return super().decide(event, group, rng)

    tool = Counter()
    rollouts = run(play, tool, Chain(Idle, 9), group_size=3, deterministic=deterministic)
    assert [results(rollouts[id]) for id in ("0", "0.0", "0.0.0")] == [["1", "2", "3"]] * 3
    assert tool.left_open == 0


def test_a_tool_that_is_first_called_after_the_fork_point_is_opened_afresh_by_both(play: Play) -> None:
    def script(task: str, path: str, turn: int) -> str:
        return "</python>" if turn == 0 else "<python>x</python>" if turn < 3 else ANSWER  # turn 0: no call, a mistake

    tool = Counter()
    rollouts = run(play, tool, Forks(FirstTokens, 1), script, group_size=2)
    assert results(rollouts["0"]) == results(rollouts["0.0"]) == ["1", "2"]
    assert (tool.copied, len(tool.states), tool.left_open) == (0, 2, 0)
    assert tool.states[0].seed == tool.states[1].seed


def test_without_forks_nothing_is_copied_and_each_state_is_opened_and_closed_once(play: Play) -> None:
    tool = Counter("none")
    rollouts = run(play, tool, NoBranching(), group_size=4)
    assert [results(rollout) for rollout in rollouts.values()] == [["1", "2", "3"]] * 4
    assert (len(tool.states), tool.copied, tool.left_open) == (4, 0, 0)
    assert len({state.seed for state in tool.states}) == 4
    assert tool.tasks == ["t"] * 4


def test_a_rollout_that_calls_nothing_opens_nothing(play: Play) -> None:
    tool = Counter()
    run(play, tool, NoBranching(), lambda *_: ANSWER, group_size=2)
    assert tool.states == []


@BOTH_ORDERS
def test_copies_are_kept_only_while_forks_can_still_come(play: Play, deterministic: bool) -> None:
    """Rollout 0 has three turns with calls and could be forked at turns 1 and 2: two copies, the second after the first
    is gone. With a whole budget used up at the start there are none.
    """
    open_at_once = []

    class Watches(Counter):
        async def fork(self, state: State) -> State:
            copy = await super().fork(state)
            open_at_once.append(self.left_open)
            return copy

    tool = Watches()
    run(play, tool, Forks(Idle, 3), group_size=2, deterministic=deterministic)
    assert (open_at_once, tool.left_open) == ([2, 2, 2], 0)
    tool = Counter()
    run(play, tool, Forks(Idle, 3, roots=2), group_size=2, deterministic=deterministic)
    assert (tool.copied, tool.left_open) == (0, 0)


def test_a_replay_that_diverges_masks_the_fork_and_nothing_else(play: Play) -> None:
    tool = Counter("replay")
    tool.drift = 1
    rollouts = run(play, tool, Forks(FirstTokens, 1), group_size=2)
    assert results(rollouts["0"]) == ["1", "2", "3"] and rollouts["0"].valid
    what = f"the call of turn 0 of {origin(tool)} gave '2', where the record has '1'"
    assert rollouts["0.0"].fault == Fault(where="plugin:state:python", message=f"replay diverged: {what}")
    assert tool.left_open == 0


def test_a_policy_that_forks_earlier_turns_of_stateful_rollouts_must_say_so(play: Play) -> None:
    tool = Counter()
    policy = Forks(Finished, 1, seen=1)
    with pytest.raises(PluginError) as caught:
        run(play, tool, policy, group_size=2)
    assert str(caught.value) == (
        "branch policy rollout.test_states.Forks answered Finished(rollout='0', stop=<StopReason.ANSWER: 'answer'>) "
        "wrongly: Fork(rollout='0', turn=1, n=1, token=0): turn 1 is before the newest of rollout 0, 3, and tools or "
        "environment have a state; a policy that forks such rollouts there declares Need.EARLIER_TURNS: "
        "return a list of StartRoots, Fork and StartFrom within group.budget_left, Stop and Done, [] for nothing"
        + defined_at(policy, "decide")
    ).replace("rollout.test_states", Forks.__module__)
    assert tool.left_open == 0


def test_a_state_that_cannot_be_forked_is_refused_before_the_start_if_the_policy_can_fork(play: Play) -> None:
    tool = Counter("none")
    with pytest.raises(ConfigError, match=rf"^tools\.python: .*\(forks = 'none'\), and {Forks.__module__}\.Forks "):
        run(play, tool, Forks(FirstTokens, 1), group_size=2)
    assert tool.states == []
    run(play, tool, Forks(FirstTokens, 1), group_size=2, plan=RolloutPlan(branch=False))
    assert (len(tool.states), tool.left_open) == (2, 0)


class Broken(Counter):
    """Fails in one of open, fork and close."""

    def __init__(self, what: str, how: Any) -> None:
        super().__init__()
        self.what, self.how = what, how

    async def _break(self, what: str) -> None:
        if what == self.what:
            if isinstance(self.how, BaseException):
                raise self.how
            await asyncio.sleep(self.how)

    async def open(self, task: Task, seed: int) -> State:
        await self._break("open")
        return await super().open(task, seed)

    async def fork(self, state: State) -> State:
        await self._break("fork")
        return await super().fork(state)

    async def close(self, state: State) -> None:
        await super().close(state)
        await self._break("close")


LINE = f" (core/tests/rollout/test_states.py:{Broken._break.__code__.co_firstlineno + 3})"  # where it raises


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (InfraError("no rooms left"), "{what} raised InfraError: no rooms left{line}"),
        (OSError("disk full"), "{what} raised OSError: disk full{line}"),
        (ValueError("?"), "{what} of {who} raised ValueError: ?{line}"),
        (SystemExit(3), "{what} of {who} raised SystemExit: 3{line}"),
        (5.0, "{what} did not return within 1 s"),
    ],
)
@pytest.mark.parametrize("what", ["open", "fork"])
def test_a_state_that_cannot_be_had_masks_its_rollout(play: Play, what: str, how: Any, message: str) -> None:
    """The parent too, if no copy can be kept of its state: else its fork would see what it did since."""
    tool = Broken(what, how)
    rollouts = run(play, tool, Forks(FirstTokens, 1), group_size=2)
    where = f"{'plugin:' if 'of {who}' in message else ''}state:python"
    assert {rollout.fault for rollout in rollouts.values()} == {
        Fault(where=where, message=message.format(what=what, who=f"{__name__}.Broken", line=LINE))
    }
    assert tool.left_open == 0


@pytest.mark.parametrize("what", ["open", "fork"])
def test_a_mistake_of_the_user_is_told_with_the_tool_whose_state_it_hinders(play: Play, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(play, Broken(what, ConfigError("no key in ROOMS_KEY")), Forks(FirstTokens, 1), group_size=2)
    assert str(caught.value) == f"{what} of {__name__}.Broken: no key in ROOMS_KEY{LINE}"


@pytest.mark.parametrize("error", [RuntimeError("gone already"), SystemExit("gone already")])
def test_a_state_that_fails_to_close_is_logged(
    play: Play, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    tool = Broken("close", error)
    with caplog.at_level(logging.WARNING):
        rollouts = run(play, tool, NoBranching(), group_size=1)
    assert rollouts["0"].valid
    assert [record.getMessage() for record in caplog.records] == [
        "close of state:python failed: RuntimeError: "
        + ("SystemExit: " if isinstance(error, SystemExit) else "")
        + "gone already"
    ]


def test_an_open_that_returns_none_stops_the_run_and_is_named(play: Play) -> None:
    class Forgets(Counter):
        async def open(self, task: Task, seed: int) -> Any:
            return None

    with pytest.raises(PluginError) as caught:
        run(play, Forgets(), NoBranching(), group_size=1)
    assert str(caught.value) == f"open of {Forgets.__module__}.{Forgets.__qualname__} returned None; allowed: a state"


@BOTH_ORDERS
def test_masked_rollouts_leave_no_state_open(play: Play, deterministic: bool) -> None:
    class Fails(Counter):
        async def __call__(self, call: ToolCall) -> ToolResult:
            if call.turn == 1 and call.rollout.endswith("/0"):
                raise InfraError("down")
            return await super().__call__(call)

    tool = Fails()
    rollouts = run(play, tool, Forks(Finished, 1, seen=1), group_size=2, deterministic=deterministic)
    assert rollouts["0"].fault == Fault(where="tool:python", message="down")
    assert results(rollouts["0.0"]) == ["1", "2", "3"]
    assert tool.left_open == 0


def test_a_rollout_that_its_deadline_ends_leaves_no_state_open(play: Play) -> None:
    tool = Broken("open", 0.5)
    rollouts = run(play, tool, NoBranching(), group_size=1, deadline_s=0.1)
    assert rollouts["0"].fault.where == "deadline"
    assert (len(tool.states), tool.left_open) == (0, 0)


def test_an_open_that_comes_after_its_rollout_was_given_up_is_closed(play: Play) -> None:
    class Stubborn(Counter):
        async def open(self, task: Task, seed: int) -> State:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                await asyncio.sleep(0.05)
            return await super().open(task, seed)

    tool = Stubborn()
    run(play, tool, NoBranching(), group_size=1, deadline_s=0.1)
    assert (len(tool.states), tool.left_open) == (1, 0)


@pytest.mark.parametrize("roots", [1, 3])
def test_a_group_that_fails_closes_every_state(play: Play, roots: int) -> None:
    """A policy that asks for too much stops the run while rollouts are in their calls."""

    class Greedy(Forks):
        def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
            if isinstance(event, FirstTokens) and event.turn == 2:
                return [StartRoots(n=99)]
            return super().decide(event, group, rng)

    tool = Counter()
    with pytest.raises(PluginError, match="it asks for 99 rollouts"):
        run(play, tool, Greedy(FirstTokens, 1, roots=roots), group_size=roots + 2)
    assert tool.states and tool.left_open == 0


def test_a_run_that_is_cancelled_closes_every_state(encoder: Any) -> None:
    from ramet.config.schema import RolloutConfig, SystemPrompt
    from ramet.rollout.config import TagsConfig
    from ramet.rollout.steps.tags import Tags
    from ramet.rollout.worker import RolloutWorker
    from ramet.testing.doubles import ScriptedEngine
    from ramet.types import user_prompt

    tool = Counter()

    async def main() -> None:
        worker = RolloutWorker(
            engine=ScriptedEngine(lambda *_: Reply(text="<python>x</python>", rest_s=0.01), encoder),
            encoder=encoder,
            step=Tags(TagsConfig()),
            branch_policy=Forks(FirstTokens, 1),
            tools={"python": (tool, ToolConfig())},
            config=RolloutConfig(group_size=3, max_turns=1000, max_tool_calls=1000),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=False,
        )
        running = asyncio.create_task(worker.run(RolloutRequest(tasks=[Task(id="t", prompt=user_prompt("?"))], step=1)))
        while len(tool.calls) < 5:
            await asyncio.sleep(0.005)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert tool.left_open == 0
        await worker.close()

    asyncio.run(main())
    assert len(tool.states) >= 3


@pytest.mark.parametrize("forks", ["copy", "replay"])
def test_a_deterministic_run_is_the_same_whatever_the_timing(play: Play, forks: str) -> None:
    class Coin:
        needs = frozenset({Need.EARLIER_TURNS})

        def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
            if isinstance(event, Start):
                return [StartRoots(n=2)]
            if isinstance(event, FirstTokens | Finished) and group.budget_left:
                newest = len(group.rollout(event.rollout).turns) - 1
                return [Fork(rollout=event.rollout, turn=rng.randint(1, newest))] if newest else []
            return []

    def tree(timing: Random) -> Any:
        class Timed(Counter):
            async def __call__(self, call: ToolCall) -> ToolResult:
                await asyncio.sleep(timing.random() / 100)
                return await super().__call__(call)

        def script(task: str, path: str, turn: int) -> Reply:
            own = Random(f"{path} {turn}")
            return Reply(text="<python>x</python>" if own.random() < 0.8 else ANSWER, rest_s=timing.random() / 100)

        tool = Timed(forks)
        rollouts = run(play, tool, Coin(), script, group_size=10, deterministic=True)
        assert tool.left_open == 0
        return [(r.id, r.fork_turn, results(r)) for r in rollouts.values()]

    trees = [tree(Random(seed)) for seed in range(3)]
    assert trees[0] == trees[1] == trees[2]
    for _, _, texts in trees[0]:
        assert texts == [str(i + 1) for i in range(len(texts))]
