"""Trackers: where the metrics of a step go (entry-point group `ramet.trackers`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run that a tracker is made for."""

    folder: Path  # the run's directory, with `config.yaml` in it; the same one when a run is resumed
    total_steps: int
    job: str = ""  # train, sft or eval
    logged: int = -1  # the last step that earlier processes of this run logged; -1: none
    id: str = ""  # of letters and digits, from the run's manifest; the same one when a run is resumed


class Tracker(Protocol):
    """Receives the metrics of a step, possibly in several calls. One that raises is reported and never stops a run.

    A plugin's tracker has its own thread, in which it is made and all of its methods are called, in order.
    """

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """`metrics` by name. Steps rise, except after `rewind`."""
        ...

    def rewind(self, step: int) -> None:
        """The run was resumed: `step` is the last one that counts, later ones are logged again."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class OutcomeTracker(Protocol):
    """Optional, for trackers that show how a run ended."""

    def ended(self, exit_code: int) -> None:
        """Called once, right before `close`: 0 done, 1 the user's mistake, 2 a failure, 130 and 143 stopped."""
        ...
