"""vLLM's schedulers, which count here what they do when keys and values have no room.

vLLM's own statistics cost Python for every token in the process that serves the requests; these cost an addition a step
and leave the scheduler's process with the numbers that are fetched anyway (`executors`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler


@dataclass(slots=True)
class CachePressure:
    """Counts of a scheduler's process since the last `take`."""

    preemptions: int = 0  # requests that lost their keys and values for another's, and compute them again
    peak: float = 0.0  # the largest share of the cache that requests in a step held

    def take(self) -> tuple[int, float]:
        taken = self.preemptions, self.peak
        self.preemptions, self.peak = 0, 0.0
        return taken


PRESSURE = CachePressure()


class _Counts:
    kv_cache_manager: Any  # the scheduler's

    def schedule(self, *arguments: Any, **options: Any) -> Any:
        output = super().schedule(*arguments, **options)  # type: ignore[misc]
        PRESSURE.peak = max(PRESSURE.peak, self.kv_cache_manager.usage)
        return output

    def _preempt_request(self, request: Any, timestamp: float, drop_stale_output: bool = False) -> None:
        PRESSURE.preemptions += not drop_stale_output  # True: of a pause, which drops the caches of all
        super()._preempt_request(request, timestamp, drop_stale_output)  # type: ignore[misc]


class CountingScheduler(_Counts, Scheduler):  # type: ignore[misc, unused-ignore]
    """Scheduler of vLLM's CPU build, which schedules a step after the one before it."""


class CountingAsyncScheduler(_Counts, AsyncScheduler):  # type: ignore[misc, unused-ignore]
    """Schedules a step while the one before it computes."""
