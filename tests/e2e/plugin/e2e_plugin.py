"""A plugin for the end-to-end tests, loaded through `RAMET_PLUGINS`: turns that are certain to call a tool.

A model with random weights never writes a tag. This rollout step needs none: it calls the tool with whatever was
sampled. The tool's latency is random and follows no seed of the run; what it returns depends on its arguments alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import Sequence
from pathlib import Path

import e2e_kill

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
)

ramet_contract = "1"
TURNS = 4
STOPS = tuple("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")  # about four bytes a turn
LATENCY_S = "E2E_LATENCY_S"  # the longest latency; most calls return much sooner, with `inf` none does

clock = random.SystemRandom()


class ShortTurns:
    """Four turns of a few bytes, with a tool call after each of the first three."""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        generation = await ctx.generate(stop=STOPS)
        if generation.finished or generation.truncated or state.turn + 1 == TURNS:
            return StepResult(stop=StopReason.END)
        text = state.response + generation.text
        result = await ctx.call_tool(ToolCall(name="e2e_digest", arguments={"text": text}))
        return StepResult(insert=(Markup(text="<result>"), Untrusted(text=result.text), Markup(text="</result>")))


class Digest:
    """Six hexadecimal digits of a text, after a while."""

    schema = ToolSchema(
        name="e2e_digest",
        description="a digest of a text",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        deterministic=True,
    )

    async def __call__(self, call: ToolCall) -> ToolResult:
        await self.wait()
        return ToolResult(text=hashlib.sha256(call.arguments["text"].encode()).hexdigest()[:6])

    async def wait(self) -> None:
        await asyncio.sleep(float(os.environ.get(LATENCY_S, "0.05")) * clock.random() ** 3)


SCORERS = "E2E_SCORERS"  # the folder in which each process that scores leaves a file with its number as name


class EvenBytes:
    """The share of even bytes in the response."""

    per_rollout = True

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        if folder := os.environ.get(SCORERS):
            Path(folder, str(os.getpid())).touch()
        return [self.score(rollout.response.encode()) for rollout in group]

    def score(self, text: bytes) -> float:
        return sum(byte % 2 == 0 for byte in text) / max(1, len(text))


class NotANumber:
    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        return [float("nan") for _ in group]


class TooFew:
    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        return [1.0 for _ in group[1:]]


@hookimpl
def register_rollout_steps(register: Register[RolloutStep]) -> None:
    register("e2e_turns", ShortTurns)


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("e2e_digest", Digest)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("e2e_even", EvenBytes)
    register("e2e_nan", NotANumber)
    register("e2e_few", TooFew)


e2e_kill.arm()
