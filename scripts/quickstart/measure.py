"""What the quickstart measures: accuracy and tool use on problems that occur in neither SFT nor RL data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from ramet import Benchmark, Group, Rollout, Task, Tool, ToolCall, ToolResult
from ramet.cluster.local import LocalRollouts
from ramet.components.build import Components
from ramet.components.services import RunServices
from ramet.components.toolbox import open_tools
from ramet.config.schema import Config
from ramet.models.loading import build_encoder
from ramet.rollout.worker import RolloutPlan

SAMPLES = 4  # rollouts per problem at temperature 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Shares in [0, 1] over all rollouts; `tool_accuracy` over the sampled ones that used the tool."""

    greedy: float
    sampled: float
    tool_use: float  # greedy
    tool_use_sampled: float
    tool_accuracy: float


async def measure(config: Config, benchmark: Benchmark, tasks: Sequence[Task]) -> Measured:
    """Greedy once and `SAMPLES` times at temperature 1, through the rollout code that trains."""
    rollouts = await _open(config, lambda tool: tool)
    try:
        greedy = await _play(rollouts, tasks, size=1, temperature=0.0)
        sampled = await _play(rollouts, tasks, size=SAMPLES, temperature=1.0)
    finally:
        await rollouts.close()
    with_tool = [r for r in sampled if r.tool_calls]
    return Measured(
        greedy=await _accuracy(benchmark, greedy),
        sampled=await _accuracy(benchmark, sampled),
        tool_use=_tool_use(greedy),
        tool_use_sampled=_tool_use(sampled),
        tool_accuracy=await _accuracy(benchmark, with_tool) if with_tool else 0.0,
    )


async def follows_the_tool(config: Config, tasks: Sequence[Task]) -> float:
    """Share of greedy answers that are what a lying tool said. A model that computes in its head would not follow."""
    rollouts = await _open(config, LyingTool)
    try:
        played = await _play(rollouts, tasks, size=1, temperature=0.0)
    finally:
        await rollouts.close()
    return fmean(bool(r.tool_calls) and r.answer == r.tool_calls[-1].text.strip() for r in played)


async def _open(config: Config, change: Callable[[Tool], Tool]) -> LocalRollouts:
    """An engine and the configured tools, each changed."""
    box = await open_tools(config, RunServices(folder=Path(config.run.root) / "services", seed=config.run.seed))
    box.tools = {name: (change(tool), settings) for name, (tool, settings) in box.tools.items()}
    return LocalRollouts(config, build_encoder(config), components=Components(config), tools=box)


class LyingTool:
    """The tool, but every number that it returns is wrong: 111 is added."""

    def __init__(self, tool: Tool) -> None:
        self.tool = tool
        self.schema = tool.schema

    async def __call__(self, call: ToolCall) -> ToolResult:
        result = await self.tool(call)
        try:
            return ToolResult(text=str(int(result.text) + 111))
        except ValueError:
            return result


async def _play(rollouts: LocalRollouts, tasks: Sequence[Task], *, size: int, temperature: float) -> list[Rollout]:
    plan = RolloutPlan(
        group_size=size, temperature=temperature, top_p=1.0, top_k=0, branch=False, salt=f"measure:{temperature}"
    )
    groups: list[Group] = await rollouts.run(tasks, step=0, plan=plan)
    masked = [r for group in groups for r in group.rollouts if not r.valid]
    if masked:
        raise RuntimeError(f"{len(masked)} rollouts were masked: {masked[0].fault}")
    return [r for group in groups for r in group.rollouts]


async def _accuracy(benchmark: Benchmark, played: Sequence[Rollout]) -> float:
    metric = benchmark.info.metrics[0]
    scores = [(await benchmark.score(rollout))[metric] for rollout in played]
    return fmean(score for score in scores if score is not None)


def _tool_use(played: Sequence[Rollout]) -> float:
    return fmean(bool(r.tool_calls) for r in played)
