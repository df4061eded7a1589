"""What the quickstart measures: accuracy and tool use on problems that occur in neither SFT nor RL data."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from kind import QuickstartKind, unchanged

from ramet import Benchmark, Group, Rollout, Task, Tool
from ramet.cluster.local import LocalRollouts
from ramet.components.build import Components
from ramet.components.services import RunServices
from ramet.components.toolbox import open_tools
from ramet.config.schema import Config
from ramet.models.loading import build_encoder
from ramet.rollout.plan import RolloutPlan, RolloutRequest

SAMPLES = 4  # rollouts per problem at temperature 1
SILENT_S = 20.0  # at most, while groups finish

logger = logging.getLogger("ramet.quickstart")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Shares in [0, 1] over all rollouts. A rollout uses the tool if it calls it as often as a right answer takes.

    `tool_accuracy` is over the sampled ones that use it.
    """

    greedy: float
    sampled: float
    tool_use: float  # greedy
    tool_use_sampled: float
    tool_accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Misled:
    """Greedy, with a tool that misleads: shares of answers that are right, and that are what the tool said last."""

    accuracy: float
    follows: float


async def measure(config: Config, benchmark: Benchmark, tasks: Sequence[Task], kind: QuickstartKind) -> Measured:
    """Greedy once and `SAMPLES` times at temperature 1, through the rollout code that trains."""
    async with opened(config) as rollouts:
        greedy = await play(rollouts, tasks, size=1, temperature=0.0)
        sampled = await play(rollouts, tasks, size=SAMPLES, temperature=1.0)
    with_tool = [r for r in sampled if _uses_tool(r, kind)]
    return Measured(
        greedy=await _accuracy(benchmark, greedy),
        sampled=await _accuracy(benchmark, sampled),
        tool_use=fmean(_uses_tool(r, kind) for r in greedy),
        tool_use_sampled=fmean(_uses_tool(r, kind) for r in sampled),
        tool_accuracy=await _accuracy(benchmark, with_tool) if with_tool else 0.0,
    )


async def mislead(config: Config, benchmark: Benchmark, tasks: Sequence[Task], kind: QuickstartKind) -> Misled:
    """`config` has the tool that misleads, as far as a configuration can. Who knows the answers would not follow."""
    async with opened(config, kind.misled_tool) as rollouts:
        played = await play(rollouts, tasks, size=1, temperature=0.0)
    return Misled(
        accuracy=await _accuracy(benchmark, played),
        follows=fmean(bool(r.tool_calls) and r.answer == kind.said(r.tool_calls[-1].text) for r in played),
    )


@asynccontextmanager
async def opened(config: Config, change: Callable[[Tool], Tool] = unchanged) -> AsyncIterator[LocalRollouts]:
    """An engine and the configured tools, each changed."""
    box = await open_tools(config, RunServices(folder=Path(config.run.root) / "services", seed=config.run.seed))
    box.tools = {name: (change(tool), settings) for name, (tool, settings) in box.tools.items()}
    rollouts = LocalRollouts(config, build_encoder(config), components=Components(config), tools=box)
    try:
        yield rollouts
    finally:
        await rollouts.close()


async def play(rollouts: LocalRollouts, tasks: Sequence[Task], *, size: int, temperature: float) -> list[Rollout]:
    plan = RolloutPlan(
        group_size=size, temperature=temperature, top_p=1.0, top_k=0, branch=False, salt=f"measure:{temperature}"
    )
    done, said = 0, time.monotonic()

    def report(_: Group) -> None:
        nonlocal done, said
        done += 1
        if time.monotonic() - said > SILENT_S:
            said = time.monotonic()
            logger.info("%d of %d problems", done, len(tasks))

    groups: list[Group] = await rollouts.run(RolloutRequest(tasks=tasks, step=0, plan=plan), on_group=report)
    masked = [r for group in groups for r in group.rollouts if not r.valid]
    if masked:
        raise RuntimeError(f"{len(masked)} rollouts were masked: {masked[0].fault}")
    return [r for group in groups for r in group.rollouts]


async def _accuracy(benchmark: Benchmark, played: Sequence[Rollout]) -> float:
    metric = benchmark.info.metrics[0]
    scores = [(await benchmark.score(rollout))[metric] for rollout in played]
    return fmean(score for score in scores if score is not None)


def _uses_tool(rollout: Rollout, kind: QuickstartKind) -> bool:
    return len(rollout.tool_calls) >= kind.calls
