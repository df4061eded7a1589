"""A plugin of Ramet for this bench, loaded by `RAMET_PLUGINS`: one tool call in the middle of each rollout, or none."""

from __future__ import annotations

import asyncio

from shape import RESULT, Barrier

from ramet import (
    Message,
    Register,
    Reward,
    Rollout,
    RolloutState,
    RolloutStep,
    StepContext,
    StepResult,
    StopReason,
    Tool,
    ToolCall,
    ToolResult,
    ToolSchema,
    hookimpl,
    per_rollout,
)

ramet_contract = "1"
barrier = Barrier()


class OneCall:
    """Calls the tool after the first turn, whatever the model writes; how long a turn is decides the side."""

    def system_prompt(self, tools: object) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        generation = await ctx.generate()
        if barrier.tool_s is None or state.turn == 1:
            return StepResult(stop=StopReason.END)
        result = await ctx.call_tool(ToolCall(name="counter", arguments={"text": generation.text}))
        return StepResult(insert=tuple(ctx.render([Message(role="tool", content=result.text)])))


class Counter:
    schema = ToolSchema(
        name="counter",
        description="Count seeds.",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    )

    async def __call__(self, call: ToolCall) -> ToolResult:
        assert barrier.tool_s is not None
        barrier.calls += 1
        await asyncio.sleep(barrier.tool_s)
        return ToolResult(text=RESULT)


def by_position(rollout: Rollout) -> float:
    """Unequal within a group, so that there is something to learn."""
    return 0.01 * int(rollout.id)


@hookimpl
def register_rollout_steps(register: Register[RolloutStep]) -> None:
    register("one_call", OneCall)


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("counter", Counter)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("by_position", lambda: per_rollout(by_position))
