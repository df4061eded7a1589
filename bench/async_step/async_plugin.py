"""A plugin for this bench, loaded by `RAMET_PLUGINS`: rollouts that wait for a slow tool, whatever the model writes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from ramet import (
    Markup,
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
    Untrusted,
    hookimpl,
    per_rollout,
)

ramet_contract = "1"
STOPS = ("a", "e", "i", "o", "u", " ", "1", "2")  # some thirty bytes a turn, of random weights
CALLS = 2


class Calls:
    """`CALLS` tool calls, each after a turn, and a last turn."""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        generation = await ctx.generate(stop=STOPS)
        if state.turn == CALLS:
            return StepResult(stop=StopReason.END)
        result = await ctx.call_tool(ToolCall(name="slow", arguments={"text": generation.text}))
        return StepResult(insert=(Markup(text="<result>"), Untrusted(text=result.text), Markup(text="</result>")))


@dataclass(kw_only=True, slots=True)
class SlowConfig:
    latency_s: float = 0.2  # mean of most calls, which take between half and one and a half times as long
    slow_share: float = 0.0  # of the calls, which take `slow_factor` times as long
    slow_factor: float = 20.0


class Slow:
    schema = ToolSchema(
        name="slow",
        description="waits",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    )

    def __init__(self, config: SlowConfig) -> None:
        self.config = config

    async def __call__(self, call: ToolCall) -> ToolResult:
        rng, config = Random(f"{call.rollout}:{call.turn}"), self.config
        factor = config.slow_factor if rng.random() < config.slow_share else 1.0
        await asyncio.sleep(factor * config.latency_s * (0.5 + rng.random()))
        return ToolResult(text="ok")


def even_bytes(rollout: Rollout) -> float:
    """The share of even bytes in the response: something that can be learned."""
    response = rollout.response.encode()
    return sum(byte % 2 == 0 for byte in response) / max(1, len(response))


@hookimpl
def register_rollout_steps(register: Register[RolloutStep]) -> None:
    register("calls", Calls)


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("slow", Slow, config=SlowConfig)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("even_bytes", lambda: per_rollout(even_bytes))
