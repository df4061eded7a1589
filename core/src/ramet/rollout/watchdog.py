"""Every wait has a name, and the oldest one is printed when it takes too long.

A thread of its own does the printing, so it also speaks when a tool blocks the event loop: then it says in which line,
after a second already, since every rollout stands still.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ramet.plugin_code import running_at

logger = logging.getLogger(__name__)
BLOCKED_S = 1.0  # an event loop that is blocked for longer is told about


class EventLoopMonitor:
    """Whether a running event loop still turns: it is asked to call back every `interval_s`."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._thread = 0
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Call in the loop."""
        self._thread = threading.get_ident()
        self._beat(asyncio.get_running_loop())

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._last = time.monotonic()
        self._timer = loop.call_later(self.interval_s, self._beat, loop)

    def stuck_s(self) -> float:
        """For how long the loop has not turned. To be asked from another thread."""
        return time.monotonic() - self._last

    def where(self) -> str:
        """What the loop runs: `function (package/module.py:12)`, of the plugin's code if there is any."""
        frame = sys._current_frames().get(self._thread)
        return "" if frame is None else running_at(frame)


def function_of(where: str) -> str:
    """Function and file of `EventLoopMonitor.where()`; not the line, which differs each time a slow loop is met."""
    return where.rpartition(":")[0]


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
        self._pulse = EventLoopMonitor(self._interval_s)

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
        return min(BLOCKED_S, self.threshold_s) / 4

    def _begin(self) -> None:
        self._stop = threading.Event()
        self._pulse.begin()
        threading.Thread(target=self._watch, args=(self._stop,), name="ramet-watchdog", daemon=True).start()

    def _end(self) -> None:
        self._stop.set()
        self._pulse.end()

    def _watch(self, stop: threading.Event) -> None:
        told, told_blocked = 0.0, dict[str, float]()  # when; when for each function
        while not stop.wait(self._interval_s):
            now = time.monotonic()
            self._tell_blocked(now, told_blocked)
            message = self._oldest(now) if now - told >= self.threshold_s else None
            if message:
                told = now
                logger.warning("%s", message)

    def _tell_blocked(self, now: float, told: dict[str, float]) -> None:
        """Once for each function that blocks the loop, and again after the threshold."""
        stuck_s = self._pulse.stuck_s()
        if stuck_s <= min(BLOCKED_S, self.threshold_s):
            return
        where = self._pulse.where()
        if now - told.get(function_of(where), -self.threshold_s) < self.threshold_s:
            return
        told[function_of(where)] = now
        line = f" in {where}" if where else ""
        logger.warning("the event loop has been blocked for %.1f s%s: nothing else can go on meanwhile", stuck_s, line)

    def _oldest(self, now: float) -> str | None:
        waits = list(self._waits.items())
        if not waits:
            return None
        oldest, since = min(waits, key=lambda wait: wait[1])
        if now - since <= self.threshold_s:
            return None
        return f"oldest wait: {oldest.name} for {now - since:.1f} s ({len(waits)} waits in all)"
