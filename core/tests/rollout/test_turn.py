"""Calls end with the turn that made them, and what they share with the tool and the step stays as it was recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ramet.config.schema import ToolConfig
from ramet.errors import InfraError, PluginError, ToolError
from ramet.rollout.tools import runner
from ramet.testing.doubles import EchoTool, Reply, echo_tool
from ramet.types import RolloutState, StepContext, StepResult, StopReason, Task, ToolCall, ToolResult, Untrusted

Play = Callable[..., Any]
TURNS = 3


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "BACKOFF_S", 0.01)


class TwoAtOnce:
    """Makes two calls at once in each turn, `<turn>.0` and `<turn>.1`. `gather` goes on when one of them raises."""

    def system_prompt(self, tools: Any) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        await ctx.generate(stop=["!"])
        if state.turn == TURNS:
            return StepResult(stop=StopReason.END)
        calls = [ToolCall(name="python", arguments={"text": f"{state.turn}.{i}"}) for i in range(2)]
        try:
            results = await asyncio.gather(*(ctx.call_tool(call) for call in calls))
        except ToolError as error:
            return StepResult(insert=(Untrusted(text=str(error)),))
        return StepResult(insert=tuple(Untrusted(text=result.text) for result in results))


def go_on(*_: object) -> Reply:
    return Reply(text="go!")


def played(play: Play, tool: Any, step: Any = None, **options: Any) -> Any:
    on_group = options.pop("on_group", None)
    tools = {"python": (tool, ToolConfig(**options))}
    [rollout] = play(
        go_on, step=step or TwoAtOnce(), tools=tools, group_size=1, on_group=on_group, deadline_s=5.0
    ).rollouts
    return rollout


class RefusesTheFirst(EchoTool):
    """The first call of the first turn is wrong; the second one takes longer than the next turn."""

    def __init__(self) -> None:
        super().__init__(echo_tool().schema)
        self.running = 0

    async def __call__(self, call: ToolCall) -> ToolResult:
        if call.arguments["text"] == "0.0":
            raise ToolError("no")
        self.running += 1
        assert self.running <= (2 if call.turn else 1), "a call of an earlier turn is still running"
        await asyncio.sleep(0.05 if call.turn == 0 else 0.001)
        self.running -= 1
        return ToolResult(text=call.arguments["text"])


def test_a_turn_ends_when_its_calls_have(play: Play) -> None:
    rollout = played(play, RefusesTheFirst())
    assert rollout.fault is None
    assert [(call.turn, call.text) for call in rollout.tool_calls] == [
        (0, "no"),
        (0, "0.1"),
        (1, "1.0"),
        (1, "1.1"),
        (2, "2.0"),
        (2, "2.1"),
    ]


def test_calls_of_a_turn_that_failed_are_cancelled(play: Play) -> None:
    class FailsTheFirst(EchoTool):
        cancelled = False

        async def __call__(self, call: ToolCall) -> ToolResult:
            if call.arguments["text"] == "0.0":
                raise InfraError("down")
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            return ToolResult(text="")

    tool, seen = FailsTheFirst(echo_tool().schema), list[bool]()
    rollout = played(play, tool, retries=0, on_group=lambda _: seen.append(tool.cancelled))
    assert (rollout.fault.where, rollout.fault.message) == ("tool:python", "down")
    assert seen == [True]


def test_a_call_after_the_end_of_its_turn_is_refused(play: Play) -> None:
    told: list[str] = []

    class Later(TwoAtOnce):
        kept: Any = None

        async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
            if state.turn == 1:
                with pytest.raises(PluginError) as caught:
                    await self.kept.call_tool(ToolCall(name="python", arguments={"text": "x"}))
                told.append(str(caught.value))
                return StepResult(stop=StopReason.END)
            self.kept = ctx
            return await super().__call__(state, ctx)

    rollout = played(play, echo_tool(), Later())
    assert told == [f"rollout step {__name__}.{Later.__qualname__} made a tool call after its turn had ended"]
    assert len(rollout.tool_calls) == 2


class Order:
    """A stateful tool that is slower for the first of two calls."""

    schema = echo_tool().schema
    forks = "copy"

    async def open(self, task: Task, seed: int) -> list[str]:
        return []

    async def fork(self, state: list[str]) -> list[str]:
        return list(state)

    async def close(self, state: list[str]) -> None:
        """Nothing to let go of."""

    async def __call__(self, call: ToolCall) -> ToolResult:
        text = call.arguments["text"]
        await asyncio.sleep(0.02 if text.endswith("0") else 0)
        call.state.append(text)
        return ToolResult(text=",".join(call.state))


def test_calls_on_one_state_run_in_their_order_whatever_time_they_take(play: Play) -> None:
    rollout = played(play, Order())
    assert [call.text for call in rollout.tool_calls][:3] == ["0.0", "0.0,0.1", "0.0,0.1,1.0"]


def test_what_a_tool_does_to_its_arguments_changes_neither_record_nor_retry(play: Play) -> None:
    class Spoils(EchoTool):
        def __init__(self) -> None:
            super().__init__(echo_tool().schema)
            self.got: list[str] = []

        async def __call__(self, call: ToolCall) -> ToolResult:
            self.got.append(call.arguments["text"])
            call.arguments["text"] = "spoiled"  # type: ignore[index]
            if len(self.got) == 1:
                raise InfraError("once")
            return ToolResult(text="x")

    class OneCall(TwoAtOnce):
        async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
            await ctx.generate()
            await ctx.call_tool(ToolCall(name="python", arguments={"text": "mine"}))
            return StepResult(stop=StopReason.END)

    tool = Spoils()
    [call] = played(play, tool, OneCall()).tool_calls
    assert tool.got == ["mine", "mine"]
    assert call.arguments == {"text": "mine"}


def test_what_a_step_does_to_metadata_does_not_change_the_record(play: Play) -> None:
    class Empties(TwoAtOnce):
        async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
            await ctx.generate()
            result = await ctx.call_tool(ToolCall(name="python", arguments={"text": "x"}))
            result.metadata["hits"].clear()
            return StepResult(stop=StopReason.END)

    tool = echo_tool(returns=ToolResult(text="x", metadata={"hits": [1]}))
    [call] = played(play, tool, Empties()).tool_calls
    assert call.metadata == {"hits": [1]}


@pytest.mark.parametrize("asked", ["3", float("nan"), True])
def test_a_wait_that_is_no_number_names_the_tool(play: Play, asked: Any) -> None:
    class Busy(EchoTool):
        async def __call__(self, call: ToolCall) -> ToolResult:
            raise InfraError("busy", retry_after_s=asked)

    with pytest.raises(PluginError) as caught:
        played(play, Busy(echo_tool().schema))
    name = f"{__name__}.{Busy.__qualname__}"
    line = Busy.__call__.__code__.co_firstlineno
    assert str(caught.value) == (
        f"tool 'python' ({name}) raised an InfraError with retry_after_s={asked!r}: give seconds as a number "
        f"({__name__.replace('.', '/')}.py:{line})"
    )
