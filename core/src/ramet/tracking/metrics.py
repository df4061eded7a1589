"""Trackers: where the numbers of a step go. A tracker that fails is reported once and never stops the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ramet.errors import raise_all
from ramet.tracking.console import ConsoleTracker
from ramet.tracking.jsonl import NAME, Entry, JsonlTracker, curves_of, read_metrics

__all__ = [
    "ConsoleTracker",
    "Entry",
    "JsonlTracker",
    "Tracker",
    "Trackers",
    "check_trackers",
    "curves_of",
    "make_trackers",
    "read_metrics",
]

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """Receives the metrics of a step, possibly in several calls."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def rewind(self, step: int) -> None:
        """The run was resumed: `step` is the last one that counts, later ones are logged again."""
        ...

    def close(self) -> None: ...


class Trackers:
    """Several trackers as one. Failures are counted, and the first of each tracker is logged."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self.trackers = dict(trackers)
        self.failures = dict.fromkeys(trackers, 0)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda tracker: tracker.log(step, metrics))

    def rewind(self, step: int) -> None:
        self._each(lambda tracker: tracker.rewind(step))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())
        for name, count in self.failures.items():
            if count > 1:
                logger.warning("tracker %s failed %d times in this run", name, count)

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in self.trackers.items():
            try:
                call(tracker)
            except Exception as error:  # the boundary: whatever a tracker raises, the training goes on
                self.failures[name] += 1
                if self.failures[name] == 1:
                    logger.warning("tracker %s failed, training goes on: %r", name, error)


_FACTORIES: dict[str, Callable[[Path, int], Tracker]] = {
    "console": lambda run, total_steps: ConsoleTracker(total_steps),
    "jsonl": lambda run, total_steps: JsonlTracker(run / NAME),
}


def check_trackers(names: Sequence[str]) -> list[str]:
    """Problems with the configured `trackers`."""
    unknown = [name for name in names if name not in _FACTORIES]
    return [f"trackers: unknown tracker {name!r}; allowed: {', '.join(sorted(_FACTORIES))}" for name in unknown]


def make_trackers(names: Sequence[str], run: Path, total_steps: int) -> Trackers:
    """The configured trackers of a run directory. The metrics file is always written: the report is made from it.

    Raises `ConfigError` for unknown names.
    """
    raise_all(check_trackers(names))
    chosen = dict.fromkeys([*names, "jsonl"])
    return Trackers({name: _FACTORIES[name](run, total_steps) for name in chosen})
