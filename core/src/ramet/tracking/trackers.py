"""Trackers: where the numbers of a step go. A tracker that fails is reported once and never stops the training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from ramet.errors import ConfigError, PluginError, raise_all
from ramet.extensions import TRACKERS, extension
from ramet.io.os_errors import os_error_text
from ramet.tracking.console import ConsoleTracker
from ramet.tracking.jsonl import NAME, JsonlTracker
from ramet.tracking.run_log import StepLog
from ramet.types import TrackedRun, Tracker

logger = logging.getLogger(__name__)


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
                    logger.warning("tracker %s failed, training goes on: %s", name, _what(error))


_FACTORIES: dict[str, Callable[[TrackedRun], Tracker]] = {
    "console": lambda run: ConsoleTracker(run.total_steps),
    "jsonl": lambda run: JsonlTracker(run.folder / NAME),
}


def check_trackers(names: Sequence[str]) -> list[str]:
    """Problems with the configured `trackers`."""
    problems = []
    for name in names:
        try:
            _factory(name)
        except (ConfigError, PluginError) as error:
            problems.append(f"trackers: {error}")
    return problems


def make_trackers(names: Sequence[str], run: TrackedRun) -> Trackers:
    """The configured trackers of a run. The metrics file is always written: the report is made from it. So are the
    lines of steps in the run's log, where it is recorded.

    Raises `ConfigErrors` for unknown names. A plugin's tracker that cannot be made is reported and left out.
    """
    raise_all(check_trackers(names))
    made: dict[str, Tracker] = {}
    for name in dict.fromkeys([*names, "jsonl"]):
        try:
            made[name] = _factory(name)(run)
        except Exception as error:
            if name in _FACTORIES:
                raise
            logger.warning("tracker %s could not be made, training goes on without it: %r", name, error)
    return Trackers({**made, "run.log": StepLog(run.total_steps)})


def _what(error: Exception) -> str:
    return os_error_text(error) if isinstance(error, OSError) else repr(error)


def _factory(name: str) -> Callable[[TrackedRun], Tracker]:
    if name in _FACTORIES:
        return _FACTORIES[name]
    loaded: Callable[[TrackedRun], Tracker] = extension(TRACKERS, name, _FACTORIES).load()
    return loaded
