"""Every wait has a name, and the oldest one is printed when it takes too long.

A thread of its own does the printing, so it also speaks when a tool blocks the event loop: then it says in which line.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class Wait:
    """One wait under way. A class, because rollouts wait often and a generator costs several times as much."""

    __slots__ = ("_waits", "name")

    def __init__(self, waits: dict[Wait, float], name: str) -> None:
        self._waits = waits
        self.name = name

    def __enter__(self) -> None:
        self._waits[self] = time.monotonic()

    def __exit__(self, *_: object) -> None:
        del self._waits[self]


class Watchdog:
    """Knows all waits under way. Prints while `watching`, at most once per threshold."""

    def __init__(self, threshold_s: float) -> None:
        self.threshold_s = threshold_s
        self._waits: dict[Wait, float] = {}  # since when
        self._watchers = 0
        self._stop = threading.Event()
        self._pulse = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, name: str) -> Wait:
        """Name what is waited for while the block runs, e.g. `tool:python rollout train/3/task7/0.1`."""
        return Wait(self._waits, name)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch from inside a running event loop until the block is left."""
        self._watchers += 1
        if self._watchers == 1:
            self._begin()
        try:
            yield
        finally:
            self._watchers -= 1
            if self._watchers == 0:
                self._end()

    @property
    def _interval_s(self) -> float:
        return min(5.0, self.threshold_s / 4)

    def _begin(self) -> None:
        self._stop = threading.Event()
        self._beat(asyncio.get_running_loop())
        arguments = (self._stop, threading.get_ident())
        threading.Thread(target=self._watch, args=arguments, name="ramet-watchdog", daemon=True).start()

    def _end(self) -> None:
        self._stop.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._pulse = time.monotonic()
        self._timer = loop.call_later(self._interval_s, self._beat, loop)

    def _watch(self, stop: threading.Event, loop_thread: int) -> None:
        told = 0.0
        while not stop.wait(self._interval_s):
            now = time.monotonic()
            if now - told < self.threshold_s:
                continue
            message = self._blocked(now, loop_thread) or self._oldest(now)
            if message:
                told = now
                logger.warning("%s", message)

    def _blocked(self, now: float, loop_thread: int) -> str | None:
        stuck_s = now - self._pulse
        if stuck_s <= self.threshold_s:
            return None
        frame = sys._current_frames().get(loop_thread)
        where = traceback.extract_stack(frame)[-1] if frame is not None else None
        line = f" in {where.name} ({where.filename}:{where.lineno})" if where is not None else ""
        return f"the event loop has been blocked for {stuck_s:.1f} s{line}: nothing else can go on meanwhile"

    def _oldest(self, now: float) -> str | None:
        waits = list(self._waits.items())
        if not waits:
            return None
        oldest, since = min(waits, key=lambda wait: wait[1])
        if now - since <= self.threshold_s:
            return None
        return f"oldest wait: {oldest.name} for {now - since:.1f} s ({len(waits)} waits in all)"
