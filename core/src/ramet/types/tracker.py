"""Trackers: where the metrics of a step go (entry-point group `ramet.trackers`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run that a tracker is made for."""

    folder: Path  # the run's directory, with `config.yaml` in it; the same one when a run is resumed
    total_steps: int


class Tracker(Protocol):
    """Receives the metrics of a step, possibly in several calls. One that raises is reported and never stops a run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """`metrics` by name. Steps rise, except after `rewind`."""
        ...

    def rewind(self, step: int) -> None:
        """The run was resumed: `step` is the last one that counts, later ones are logged again."""
        ...

    def close(self) -> None: ...
