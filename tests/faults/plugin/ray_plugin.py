"""A plugin for the tests of faults under Ray: a tool that strikes its own worker, and a loss that strikes its own rank.

Each strikes once: a file in `folder` says that it has.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faults_plugin
import ray
import torch.distributed

from ramet import (
    LossInputs,
    LossOutput,
    Markup,
    Need,
    PolicyLoss,
    Register,
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
from ramet.engines.torch.forward import Forward

ramet_contract = "1"


class TwoCalls:
    """Three turns of a few bytes, with a tool call after each of the first two: forks call the tool too."""

    def system_prompt(self, tools: Sequence[ToolSchema]) -> str:
        return ""

    async def __call__(self, state: RolloutState, ctx: StepContext) -> StepResult:
        generation = await ctx.generate(stop=faults_plugin.STOPS)
        if state.turn == 2:
            return StepResult(stop=StopReason.END)
        result = await ctx.call_tool(ToolCall(name="ray_tool", arguments={"text": state.response + generation.text}))
        return StepResult(insert=(Markup(text="<result>"), Untrusted(text=result.text), Markup(text="</result>")))


@dataclass(kw_only=True, slots=True)
class StrikerConfig:
    folder: str = "."
    kill: str = ""  # STEP/PATH of the rollout whose call kills the worker
    stop: str = ""  # or stops it
    fail: str = ""  # or makes its engine fail
    wait: list[int] = field(default_factory=list)  # steps whose calls wait until the test lets them continue


class Striker:
    schema = ToolSchema(
        name="ray_tool",
        description="a digest of a text",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    )

    def __init__(self, config: StrikerConfig) -> None:
        self.config = config

    async def __call__(self, call: ToolCall) -> ToolResult:
        where = "/".join(call.rollout.split("/")[i] for i in (1, -1))
        if where == self.config.kill:
            strike(Path(self.config.folder), signal.SIGKILL)
        if where == self.config.stop:
            strike(Path(self.config.folder), signal.SIGSTOP)
        if where == self.config.fail and first(Path(self.config.folder), "engine"):
            Forward.decode = out_of_memory  # type: ignore[method-assign]
        if (step := int(call.rollout.split("/")[1])) in self.config.wait:
            await released(Path(self.config.folder), step)
        return ToolResult(text=hashlib.sha256(call.arguments["text"].encode()).hexdigest()[:6])


@dataclass(kw_only=True, slots=True)
class DeadlyConfig:
    folder: str = "."
    step: int = 0
    rank: int = 0


class Deadly:
    """The plain policy gradient; kills a rank in the update of a step."""

    needs: frozenset[Need] = frozenset()

    def __init__(self, config: DeadlyConfig) -> None:
        self.config = config

    def __call__(self, batch: LossInputs) -> LossOutput:
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        if int(batch.policy_versions.max()) + 1 == self.config.step and rank == self.config.rank:
            strike(Path(self.config.folder), signal.SIGKILL)
        return LossOutput(per_token=-batch.advantages * batch.logprobs)


async def released(folder: Path, step: int) -> None:
    """Write on which node this call is, and wait for the test's file."""
    (folder / f"waiting_{step}_{ray.get_runtime_context().get_node_id()}").touch()
    while not (folder / f"continue_{step}").exists():
        await asyncio.sleep(0.05)


def strike(folder: Path, number: signal.Signals) -> None:
    if first(folder, number.name):
        os.kill(os.getpid(), number)


def first(folder: Path, what: str) -> bool:
    try:
        (folder / f"struck_{what}").open("x").write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def out_of_memory(*_: object) -> Any:
    raise RuntimeError("CUDA error: out of memory")


@hookimpl
def register_policy_losses(register: Register[PolicyLoss]) -> None:
    register("ray_loss", Deadly, config=DeadlyConfig)


@hookimpl
def register_rollout_steps(register: Register[RolloutStep]) -> None:
    register("ray_turns", TwoCalls)


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("ray_tool", Striker, config=StrikerConfig)
