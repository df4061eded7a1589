"""A plugin of Ramet for this bench, loaded by `RAMET_PLUGINS`: a tool that waits, and a reward that differs."""

from __future__ import annotations

import asyncio

from protocol import StepBarrier
from task import FILL

from ramet import Register, Reward, Rollout, Tool, ToolCall, ToolResult, ToolSchema, hookimpl, per_rollout

ramet_contract = "1"
SCHEMA = ToolSchema(
    name="search",
    description="Search the web.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
RESULT = "result for capital"
barrier = StepBarrier()


class Search:
    """Waits as long as the current step requires. `fill`: filling words in its result, set by the bench."""

    schema = SCHEMA
    fill = 0

    async def __call__(self, call: ToolCall) -> ToolResult:
        barrier.enter_tool()
        await asyncio.sleep(barrier.latency_s)
        barrier.leave_tool()
        return ToolResult(text=RESULT + FILL * Search.fill)


def by_position(rollout: Rollout) -> float:
    """Unequal within a group, so that there is something to learn."""
    return 0.01 * int(rollout.id)


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("search", Search)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("by_position", lambda: per_rollout(by_position))
