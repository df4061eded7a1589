"""Complete rollouts of a rollout step against replies written beforehand: for its checks and an environment's."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from ramet.errors import InfraError, ToolError
from ramet.plugins.output_checks import begin_problem, state_key_problem, step_problem, stop_problem
from ramet.rollout.stateful import is_stateful
from ramet.rollout.turn import CallLimit
from ramet.testing.checked import crash
from ramet.testing.doubles import echo_tool
from ramet.testing.expect import expect, expect_copy, expect_none
from ramet.testing.scripted_context import ScriptedContext
from ramet.types import (
    Generation,
    Message,
    RolloutState,
    RolloutStep,
    StepResult,
    StopReason,
    Task,
    Tool,
    ToolCall,
    ToolResult,
    user_prompt,
)

MAX_TOOL_CALLS = 3
MAX_TURNS = MAX_TOOL_CALLS + 4  # room for a step that gives the policy a last word
TASK = Task(id="conformance/0", prompt=user_prompt("What is 2 + 3?"), answer=("5",))
SEED = 1


@dataclass(frozen=True, slots=True)
class StepUnderTest:
    """The step to be checked, and its task."""

    step: RolloutStep
    task: Task


class Play(ScriptedContext):
    """A rollout in flight: the scripted context of its step, with its turns so far. The last reply is repeated."""

    def __init__(self, script: Sequence[str], tool: Tool | None = None, environment: Any = None) -> None:
        replies = [*script, *[script[-1]] * MAX_TURNS]
        super().__init__(
            replies,
            [tool or echo_tool("echo")],
            max_tool_calls=MAX_TOOL_CALLS,
            max_turns=MAX_TURNS,
            environment=environment,
        )
        self.script = script
        self.results: list[StepResult] = []  # of its turns, and of `finish`
        self.generated: str | None = None  # in this turn
        self.written: list[str] = []  # in each turn that generated
        self.response = ""
        self.stop: StopReason | None = None
        self.is_over_limit = False

    async def generate(self, *, stop: Sequence[str] = ()) -> Generation:
        expect(self.generated is None, "generate is called twice in a turn: at most once")
        problem = stop_problem(stop)
        expect(problem is None, problem or "")
        await asyncio.sleep(0)
        generation = await super().generate(stop=stop)
        self.generated = generation.text
        self.written.append(generation.text)
        return generation

    async def call_tool(self, call: ToolCall) -> ToolResult:
        if len(self.calls) >= MAX_TOOL_CALLS:
            self.is_over_limit = True
            raise CallLimit(f"the limit of {MAX_TOOL_CALLS} tool calls is reached")
        await asyncio.sleep(0)
        return await super().call_tool(call)


@asynccontextmanager
async def opened(subject: StepUnderTest) -> AsyncIterator[Any]:
    """A state of the step, closed in the end; None for a step without states."""
    step: Any = subject.step
    if not is_stateful(step):
        yield None
        return
    state = await step.open(subject.task, SEED)
    expect(state is not None, "open returned None: return a state")
    try:
        yield state
    finally:
        await step.close(state)


async def play(subject: StepUnderTest, script: Sequence[str], *, rollout: str = "0", tool: Tool | None = None) -> Play:
    """Run one rollout to its end."""
    async with opened(subject) as environment:
        played = Play(script, tool, environment)
        await begin(subject, played)
        await go_on(subject, played, rollout=rollout)
    return played


async def forked(subject: StepUnderTest, original: Play, script: Sequence[str]) -> Play:
    """The rollout of a fork of this one's state, which goes its own way."""
    step: Any = subject.step
    state = await step.fork(original.environment)
    expect_copy(state, original.environment)
    return beside(original, script, state)


def beside(original: Play, script: Sequence[str], environment: Any) -> Play:
    """Another rollout that has come as far as this one."""
    other = Play(script, environment=environment)
    other.response, other.calls, other.stops = original.response, list(original.calls), list(original.stops)
    other._tokens_left = original._tokens_left
    return other


async def begin(subject: StepUnderTest, played: Play) -> None:
    """The first observation."""
    if not hasattr(subject.step, "begin"):
        return
    first = await subject.step.begin(played.environment)
    expect_none(begin_problem(first))
    if messages := [part for part in first if isinstance(part, Message)]:
        first = played.render(messages)
    played.response += "".join(part.text for part in first)


async def go_on(
    subject: StepUnderTest, played: Play, *, rollout: str = "0", first_turn: int = 0, n_turns: int = MAX_TURNS
) -> None:
    """Turns until the rollout ends, which only an environment leaves to the limit of turns, or `n_turns` have run."""
    for turn in range(first_turn, min(MAX_TURNS, first_turn + n_turns)):
        state = RolloutState(
            task=subject.task,
            rollout=rollout,
            turn=turn,
            response=played.response,
            n_tool_calls=len(played.calls),
            environment=played.environment,
        )
        if hasattr(subject.step, "state_key"):
            expect_none(state_key_problem(subject.step.state_key(played.environment)))
        result = await _turn(subject.step, state, played)
        played.results.append(replace(result, metrics={}))  # a metric may be a time
        played.stop = result.stop
        if result.stop is not None:
            break
        played.response += (played.generated or "") + "".join(part.text for part in result.insert)
    if played.stop is None and first_turn + n_turns < MAX_TURNS:
        return
    expect(
        played.stop is not None or is_stateful(subject.step),
        f"a rollout whose policy writes {played.script[-1]!r} every turn has not ended after {MAX_TURNS} turns with "
        f"max_tool_calls={MAX_TOOL_CALLS}: stop when there is no call, and when state.n_tool_calls reaches the limit",
    )
    await _finish(subject, played)


async def _finish(subject: StepUnderTest, played: Play) -> None:
    if not hasattr(subject.step, "finish"):
        return
    result = await subject.step.finish(played.environment, played.stop or StopReason.TURN_LIMIT)
    if result is None:
        return
    expect(isinstance(result, StepResult), f"finish returned {type(result).__name__}: return a StepResult or None")
    expect(not result.insert and result.stop is None, "finish inserts or stops: the rollout has ended already")
    problem = step_problem(result)
    expect(problem is None, f"finish: {problem}")
    played.results.append(replace(result, metrics={}))


async def _turn(step: RolloutStep, state: RolloutState, play: Play) -> StepResult:
    before, play.generated = copy.deepcopy(replace(state, environment=None)), None
    try:
        result = await step(state, play)
    except (AssertionError, InfraError):
        raise
    except CallLimit:
        result = StepResult(stop=StopReason.CALL_LIMIT)
    except ToolError as error:
        raise AssertionError(f"a ToolError escapes the step ({error}): catch it and insert its text") from error
    except Exception as error:
        raise AssertionError(f"{crash(error)}, where the policy wrote {play.generated!r}") from error
    expect(
        replace(state, environment=None) == before,
        f"changed its state from {before} to {state}: it belongs to the core",
    )
    expect_none(step_problem(result))
    if play.is_over_limit and result.stop is None:
        result = replace(result, insert=(), stop=StopReason.CALL_LIMIT)
    expect(
        play.generated is not None or result.stop is not None,
        "a turn neither calls ctx.generate nor stops: the rollout would go round for ever",
    )
    return result
