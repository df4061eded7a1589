"""A run that is asked to stop by SIGTERM (preemption) or SIGINT (Ctrl-C) ends at a state that it can go on from.

Weights change in the update alone. So what runs before the update of a step is dropped, and the state behind the step
before it, which is still in memory, is saved; an update that has begun is carried through, and its step is saved. A
second signal ends the process at once: what stands on disk is whole at any moment.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from ramet.tracking.stopped import Stopped

__all__ = ["SIGNALS", "Dropped", "StopRequest", "Stopped"]

T = TypeVar("T")
SIGNALS = (signal.SIGTERM, signal.SIGINT)
CANCEL_S = 5.0  # for what is dropped to notice; the state is saved whether it did or not
SHARE = 0.5  # of the grace time, for what is carried through; the rest is for the checkpoint


class Dropped(Exception):
    """What was waited for is given up, because a stop was asked for."""


class StopRequest:
    """Listens for the signals. Where a run can be cut, it asks here whether it should be."""

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.signal: int | None = None  # the first one that came
        self._at = 0.0  # when it came
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked = asyncio.Event()

    @property
    def asked(self) -> bool:
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """The first signal raises `Stopped` where the program is, or, inside `deferred`, is noted. The second one ends
        the process. Only a main thread can listen; a signal that is ignored, as under nohup, stays so.
        """
        mine = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in SIGNALS if mine}
        heard = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
        for number in heard:
            signal.signal(number, self._hear)
        try:
            yield
        finally:
            for number, handler in heard.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """In the running event loop: a signal raises nothing; `check`, `drop` and `finish` see it, then `settle`."""
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
        """Raise `Dropped` if a stop was asked for."""
        if self.asked:
            raise Dropped

    async def drop(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`; cancel it and raise `Dropped` as soon as a stop is asked for."""
        return await self._wait(work, 0.0)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`; cancel it and raise `Dropped` if a stop was asked for and its time is over."""
        return await self._wait(work, SHARE * self.grace_s)

    async def _wait(self, work: Coroutine[Any, Any, T], patience: float) -> T:
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self._asked.wait())
        try:
            if not self.asked:
                await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if self.asked and not task.done() and (left := self._at + patience - time.monotonic()) > 0:
                await asyncio.wait({task}, timeout=left)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_S)
            if task.done() and not task.cancelled():
                task.exception()  # what it met on its way out is of no interest, and asyncio is told so
            raise Dropped
        finally:
            asked.cancel()
            task.cancel()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if self.asked:
            _say(f"{name} again: ended at once")
            os._exit(128 + number)
        self.signal, self._at = number, time.monotonic()
        if self._loop is None:
            raise Stopped(number)
        _say(f"{name}: saving and stopping, within {self.grace_s:g} s if the step allows; a second signal ends at once")
        self._loop.call_soon_threadsafe(self._asked.set)  # thread-safe or not: it wakes a loop that sleeps


def _say(text: str) -> None:
    """Past the log, whose stream may be in the middle of a write when the signal comes."""
    os.write(2, f"{text}\n".encode())
