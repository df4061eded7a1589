"""A plugin for the tests of faults, loaded through `RAMET_PLUGINS`: turns that are certain to call a tool.

A model with random weights never writes a tag. This rollout step needs none: it calls the tool once, whatever was
sampled, and ends after the next turn. Which calls straggle is an option of the tool.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ramet import (
    LossInputs,
    LossOutput,
    Markup,
    Need,
    PolicyLoss,
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
STOPS = tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")  # about four bytes a turn


class OneCall:
    """Two turns of a few bytes, with one tool call between them."""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        generation = await ctx.generate(stop=STOPS)
        if state.turn == 1:
            return StepResult(stop=StopReason.END)
        result = await ctx.call_tool(ToolCall(name="fault_tool", arguments={"text": generation.text}))
        return StepResult(insert=(Markup(text="<result>"), Untrusted(text=result.text), Markup(text="</result>")))


@dataclass(kw_only=True, slots=True)
class DigestConfig:
    straggler: str | None = None  # calls whose rollout key ends so take `sleep_s`
    sleep_s: float = 300.0


class Digest:
    """Six hexadecimal digits of a text, at once, or after a very long time."""

    schema = ToolSchema(
        name="fault_tool",
        description="a digest of a text",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    )

    def __init__(self, config: DigestConfig) -> None:
        self.config = config

    async def __call__(self, call: ToolCall) -> ToolResult:
        if self.config.straggler is not None and call.rollout.endswith(self.config.straggler):
            await asyncio.sleep(self.config.sleep_s)
        return ToolResult(text=hashlib.sha256(call.arguments["text"].encode()).hexdigest()[:6])


def even_bytes(rollout: Rollout) -> float:
    """The share of even bytes in the response."""
    said = rollout.response.encode()
    return sum(byte % 2 == 0 for byte in said) / max(1, len(said))


@dataclass(kw_only=True, slots=True)
class BreakableConfig:
    first_bad: int = 0  # training step, counted from 1
    last_bad: int = -1


class Breakable:
    """The plain policy gradient; not a number in some steps."""

    needs: frozenset[Need] = frozenset()

    def __init__(self, config: BreakableConfig) -> None:
        self.config = config

    def __call__(self, batch: LossInputs) -> LossOutput:
        step = int(batch.policy_versions.max()) + 1
        broken = self.config.first_bad <= step <= self.config.last_bad
        return LossOutput(per_token=-batch.advantages * batch.logprobs * (float("nan") if broken else 1.0))


@hookimpl
def register_policy_losses(register: Register[PolicyLoss]) -> None:
    register("fault_loss", Breakable, config=BreakableConfig)


@hookimpl
def register_rollout_steps(register: Register[RolloutStep]) -> None:
    register("fault_turns", OneCall)


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("fault_tool", Digest, config=DigestConfig)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("fault_even", lambda: per_rollout(even_bytes))
