"""Counts of the tool runtime, one object per tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class ToolStats:
    """Counters and times. Times in seconds."""

    calls: int = 0  # made by rollouts
    executed: int = 0  # runs of the tool: without shared calls, with retries
    shared: int = 0  # calls answered by an identical one in flight
    errors: int = 0  # the model's mistakes
    infra: int = 0  # calls that failed for good
    retries: int = 0
    waits: int = 0  # times that a service asked to be called later
    truncated: int = 0
    exceptions: Counter[str] = field(default_factory=Counter)  # of the errors, those that a function raised, by type
    wait_s: list[float] = field(default_factory=list)
    run_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)  # the waits that it asked for

    def add(self, other: ToolStats) -> None:
        """Take in what the same tool did in another worker."""
        for stat in fields(self):
            setattr(self, stat.name, getattr(self, stat.name) + getattr(other, stat.name))

    def metrics(self, prefix: str) -> dict[str, float]:
        metrics: dict[str, float] = {}
        for stat in fields(self):
            value = getattr(self, stat.name)
            if isinstance(value, int):
                metrics[f"{prefix}/{stat.name}"] = float(value)
            elif isinstance(value, Counter):
                metrics |= {f"{prefix}/{stat.name}/{name}": float(n) for name, n in value.items()}
            elif value:
                stem = stat.name.removesuffix("_s")
                metrics[f"{prefix}/{stem}_p50_s"] = percentile(value, 0.50)
                metrics[f"{prefix}/{stem}_p95_s"] = percentile(value, 0.95)
        return metrics


def tool_metrics(stats: Mapping[str, ToolStats]) -> dict[str, float]:
    """`tool/NAME/…` of each tool."""
    return {
        key: value for name, tool_stats in stats.items() for key, value in tool_stats.metrics(f"tool/{name}").items()
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]
