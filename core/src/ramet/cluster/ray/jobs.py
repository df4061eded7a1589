"""What actors are given when they start, and what they count. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.components.services import RunServices
from ramet.components.toolbox import Schemas
from ramet.config.schema import Config, RunConfig
from ramet.engines.counters import merged
from ramet.rollout.tools.stats import ToolStats, tool_metrics

if TYPE_CHECKING:
    from ramet.policy.spec import CriticSpec, PolicySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJob:
    config: Config
    branching: bool
    services: RunServices
    tool_sets: Mapping[str, Schemas]  # as opened before the start


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyJob:
    run: RunConfig
    timeout_s: float
    spec: PolicySpec
    critic: CriticSpec | None
    rank: int
    world_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a rollout worker did since it was last asked, as it can be added to that of others."""

    tools: dict[str, ToolStats]
    engine: dict[str, float]


def total(found: Sequence[Counts]) -> dict[str, float]:
    """The metrics of all workers together."""
    tools: dict[str, ToolStats] = {}
    for counts in found:
        for name, stats in counts.tools.items():
            tools.setdefault(name, ToolStats()).add(stats)
    return {**tool_metrics(tools), **merged([counts.engine for counts in found])}
