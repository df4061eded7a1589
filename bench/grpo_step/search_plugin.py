"""A plugin of Ramet for this bench, loaded by `RAMET_PLUGINS`: a tool that waits, and a reward that differs."""

from __future__ import annotations

import asyncio

from protocol import Gate
from task import FILL

from ramet import Register, Reward, Rollout, Tool, ToolCall, ToolResult, ToolSchema, hookimpl, per_rollout

ramet_contract = "1"
SCHEMA = ToolSchema(
    name="search",
    description="Search the web.",
    parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
RESULT = "result for capital"
gate = Gate()


class Search:
    """Waits as long as the step under way says. `fill`: filling words in its result, set by the bench."""

    schema = SCHEMA
    fill = 0

    async def __call__(self, call: ToolCall) -> ToolResult:
        gate.enter()
        await asyncio.sleep(gate.latency_s)
        gate.leave()
        return ToolResult(text=RESULT + FILL * Search.fill)


def by_place(rollout: Rollout) -> float:
    """Unequal within a group, so that there is something to learn."""
    return 0.01 * int(rollout.id)


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("search", Search)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("by_place", lambda: per_rollout(by_place))
