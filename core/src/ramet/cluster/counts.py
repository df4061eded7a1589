"""Counts of a rollout worker's tools and engine, in a form that adds up: over workers, and over stretches of time with
something between them that is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ramet.engines.counters import BUSY, merged
from ramet.rollout.tools.stats import ToolStats, tool_metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of one worker since the last request for them, `seconds` ago."""

    tools: dict[str, ToolStats]
    engine: dict[str, float]
    seconds: float


def total_metrics(all_counts: Sequence[Counts]) -> dict[str, float]:
    """The metrics of all of them together; the busy share is the mean over their time."""
    tools: dict[str, ToolStats] = {}
    for counts in all_counts:
        for name, stats in counts.tools.items():
            tools.setdefault(name, ToolStats()).add(stats)
    engine = merged([counts.engine for counts in all_counts])
    if seconds := sum(counts.seconds for counts in all_counts if BUSY in counts.engine):
        engine[BUSY] = sum(counts.engine.get(BUSY, 0.0) * counts.seconds for counts in all_counts) / seconds
    return {**tool_metrics(tools), **engine}
