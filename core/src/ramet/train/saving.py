"""Saving of a run, and its reaction to failed saves: a full disk costs a checkpoint, two of them the run.

The state is staged first and written by a thread. With `train.async_save` the state is copied, the run continues
meanwhile and learns of a failure at a later step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from ramet.policy.checkpoint.store import Checkpoints, CheckpointScore
from ramet.policy.errors import CheckpointNotWritten

logger = logging.getLogger(__name__)
MAX_FAILED = 2  # saves in a row
Write = Callable[[Path], None]


class Saver:
    """`saved` is the newest step on disk."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        stage: Callable[[bool], Awaitable[Write]],
        *,
        every: int,
        last: int,
        saved: int,
        in_background: bool,
    ) -> None:
        """`stage` returns what fills a folder with the current state, in any thread. Its argument: whether the run
        waits for that, so that no copy is needed.
        """
        self.checkpoints = checkpoints
        self.stage = stage
        self.every = every
        self.last = last
        self.saved = saved
        self.in_background = in_background
        self.failed = 0
        self._in_progress: tuple[int, asyncio.Task[None]] | None = None

    async def save_if_due(self, step: int, score: CheckpointScore | None) -> None:
        """Save every `every` steps, the last one, and one whose `score` is the best so far. A failed save is warned
        of, and the run continues to the next.

        Raises `CheckpointNotWritten` if the one before failed too, or none comes after it.
        """
        if self._in_progress is not None and self._in_progress[1].done():
            await self._settle()
        if step == self.last:
            await self.save(step)
        elif step % self.every == 0 or await self._is_best(step, score):
            await self._settle()
            write = await self.stage(not self.in_background)
            self._in_progress = step, asyncio.create_task(self._write(step, write), name=f"save of step {step}")
            if not self.in_background:
                await self._settle()

    async def save(self, step: int) -> None:
        """Save now, unless this step is on disk. Raises `CheckpointNotWritten`."""
        await self._settle()
        if step > self.saved:
            await self._write(step, await self.stage(True))

    async def end(self) -> None:
        """Let the save in progress complete, if another error ended the run: its own exceptions become warnings."""
        if self._in_progress is None:
            return
        (step, writing), self._in_progress = self._in_progress, None
        try:
            await writing
        except Exception as error:
            logger.warning("CHECKPOINT OF STEP %d NOT SAVED: %s; the newest is of step %d", step, error, self.saved)

    async def _is_best(self, step: int, score: CheckpointScore | None) -> bool:
        if score is None:
            return False
        await self._settle()  # a save in progress may be the best
        best = await asyncio.to_thread(self.checkpoints.best, step)  # it may read all of a checkpoint
        return best is None or score.value > best[1].value

    async def _write(self, step: int, write: Write) -> None:
        await asyncio.to_thread(self.checkpoints.save, step, write)
        self.saved, self.failed = step, 0

    async def _settle(self) -> None:
        """Wait for the save in progress; its failure is only warned of if it is the first."""
        if self._in_progress is None:
            return
        (step, writing), self._in_progress = self._in_progress, None
        try:
            await writing
        except CheckpointNotWritten as error:
            self.failed += 1
            if self.failed >= MAX_FAILED:
                raise CheckpointNotWritten(f"{self.failed} saves in a row failed, so the run stops: {error}") from error
            logger.warning(
                "CHECKPOINT OF STEP %d NOT SAVED: %s; a kill now loses the work after step %d. The run continues; "
                "if the next save fails too, it stops",
                step,
                error,
                self.saved,
            )
