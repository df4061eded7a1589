"""A run that is asked to stop by SIGTERM (preemption) or SIGINT (Ctrl-C) ends at a state that it can continue from.

Only the update changes weights. So work before the update of a step is dropped, and the state after the step before it,
which is still in memory, is saved. An update that has begun is completed, and its step is saved. A second signal ends
the process at once: the files on disk are complete at any time.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ramet.runs.stopped import StopListener, Stopped, write_stderr

T = TypeVar("T")
CANCEL_S = 5.0  # for cancelled work to end; the state is saved whether it has ended or not
SHARE = 0.5  # of the grace time, for work that is completed; the rest is for the checkpoint


class Dropped(Exception):
    """Awaited work was cancelled, because the run is to stop."""


class Preemption(StopListener):
    """Waits for the work of a run, and cancels it when the run is to stop."""

    def __init__(self, grace_s: float) -> None:
        super().__init__()
        self.grace_s = grace_s
        self._at = 0.0  # when the signal came
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = asyncio.Event()

    @contextmanager
    def deferred(self, said: str = "") -> Iterator[None]:
        """Defer signals in the running event loop: none raises; `check`, `drop` and `finish` see it, then `settle`."""
        self._loop = asyncio.get_running_loop()
        try:
            yield
        finally:
            self._loop = None

    def settle(self) -> None:
        """Raise `Stopped` if a signal came while it was deferred."""
        if self.signal is not None:
            raise Stopped(self.signal)

    def check(self) -> None:
        """Raise `Dropped` if the run is to stop."""
        if self.asked:
            raise Dropped

    async def drop(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`; cancel it and raise `Dropped` as soon as the run is to stop."""
        return await self._wait(work, 0.0)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`; cancel it and raise `Dropped` if the run is to stop and its time is over."""
        return await self._wait(work, SHARE * self.grace_s)

    async def _wait(self, work: Coroutine[Any, Any, T], patience: float) -> T:
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self._asked.wait())
        try:
            if not self.asked:
                await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if self.asked and not task.done() and (remaining_s := self._at + patience - time.monotonic()) > 0:
                await asyncio.wait({task}, timeout=remaining_s)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_S)
            if task.done() and not task.cancelled():
                task.exception()  # reading the exception keeps asyncio from reporting it
            raise Dropped
        finally:
            asked.cancel()
            task.cancel()

    def _defers(self) -> bool:
        assert self.signal is not None
        self._at = time.monotonic()
        if self._loop is None:
            return False
        write_stderr(
            f"{signal.Signals(self.signal).name}: saving and stopping, within {self.grace_s:g} s if the step allows; a "
            "second signal ends at once"
        )
        self._loop.call_soon_threadsafe(self._asked.set)  # thread-safe or not: it wakes a loop that sleeps
        return True
