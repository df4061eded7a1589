"""What the tool runtime counts, one object per tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields


@dataclass(slots=True)
class ToolStats:
    """Counters and times since they were last taken. Times in seconds."""

    calls: int = 0  # made by rollouts
    executed: int = 0  # runs of the tool: without shared calls, with retries
    shared: int = 0  # calls answered by an identical one in flight
    errors: int = 0  # the model's mistakes
    infra: int = 0  # calls that failed for good
    retries: int = 0
    truncated: int = 0
    wait_s: list[float] = field(default_factory=list)
    run_s: list[float] = field(default_factory=list)

    def take(self, prefix: str) -> dict[str, float]:
        """The metrics under this prefix; starts anew."""
        metrics: dict[str, float] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, int):
                metrics[f"{prefix}/{one.name}"] = float(value)
                setattr(self, one.name, 0)
                continue
            stem = one.name.removesuffix("_s")
            if value:
                metrics[f"{prefix}/{stem}_p50_s"] = percentile(value, 0.50)
                metrics[f"{prefix}/{stem}_p95_s"] = percentile(value, 0.95)
            setattr(self, one.name, [])
        return metrics


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, min(len(ordered), int(rank)) - 1)]
