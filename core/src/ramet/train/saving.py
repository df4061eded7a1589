"""When a run saves itself, and what it does when it cannot: a full disk costs a checkpoint, two of them the run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from ramet.policy.checkpoint import Checkpoints
from ramet.policy.errors import CheckpointError

logger = logging.getLogger(__name__)
MAX_FAILED = 2  # saves in a row


class Saver:
    """Saves through `write`, which fills a folder with the state of now. `saved` is the newest step on disk."""

    def __init__(
        self, checkpoints: Checkpoints, write: Callable[[Path], None], *, every: int, last: int, saved: int
    ) -> None:
        self.checkpoints = checkpoints
        self.write = write
        self.every = every
        self.last = last
        self.saved = saved
        self.failed = 0

    def save_if_due(self, step: int) -> None:
        """Every `every` steps, and the last one. A failed save is warned of, and the run goes on to the next.

        Raises `CheckpointError` if the one before failed too, or none comes after it.
        """
        if step == self.last:
            self.save(step)
        elif step % self.every == 0:
            try:
                self.save(step)
            except CheckpointError as error:
                self.failed += 1
                if self.failed >= MAX_FAILED:
                    raise CheckpointError(f"{self.failed} saves in a row failed, so the run stops: {error}") from error
                logger.warning(
                    "CHECKPOINT OF STEP %d NOT SAVED: %s; a kill now loses the work behind step %d. The run goes on; "
                    "if the next save fails too, it stops",
                    step,
                    error,
                    self.saved,
                )

    def save(self, step: int) -> None:
        """Save, unless this step stands on disk. Raises `CheckpointError`."""
        if step > self.saved:
            self.checkpoints.save(step, self.write)
            self.saved, self.failed = step, 0
