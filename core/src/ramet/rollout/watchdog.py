"""Every wait has a name, and the oldest one is printed when it takes too long.

A separate thread prints, so it also works while a tool blocks the event loop. It then names the line, after one second
already, since no rollout can continue.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

from ramet.plugins.plugin_code import running_at

logger = logging.getLogger(__name__)
THRESHOLD_S = 60.0  # a wait that is older is printed
CLOSE_TIMEOUT_S = 10.0
BLOCKED_S = 1.0  # an event loop that is blocked for longer is reported


class EventLoopMonitor:
    """Whether an event loop is blocked: it is asked to call back every `interval_s`."""

    def __init__(self, interval_s: float) -> None:
        self.interval_s = interval_s
        self._thread = 0
        self._last = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Call in the loop."""
        self._thread = threading.get_ident()
        self._on_timer(asyncio.get_running_loop())

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._last = time.monotonic()
        self._timer = loop.call_later(self.interval_s, self._on_timer, loop)

    def stuck_s(self) -> float:
        """Return for how long the loop has been blocked. Call it from another thread."""
        return time.monotonic() - self._last

    def where(self) -> str:
        """The running code of the loop: `function (package/module.py:12)`, of the plugin's code if there is any."""
        frame = sys._current_frames().get(self._thread)
        return "" if frame is None else running_at(frame)


def function_of(where: str) -> str:
    """Function and file of `EventLoopMonitor.where()`; not the line, which differs each time if a loop is slow."""
    return where.rpartition(":")[0]


class Wait:
    """One current wait. A class, because rollouts wait often and a generator costs several times as much."""

    __slots__ = ("_waits", "name")

    def __init__(self, waits: dict[Wait, float], name: str) -> None:
        self._waits = waits
        self.name = name

    def __enter__(self) -> None:
        self._waits[self] = time.monotonic()

    def __exit__(self, *_: object) -> None:
        del self._waits[self]


class Watchdog:
    """Knows all current waits. Prints while `watching`, at most once per threshold."""

    def __init__(self, threshold_s: float | None = None) -> None:
        self.threshold_s = THRESHOLD_S if threshold_s is None else threshold_s
        self._waits: dict[Wait, float] = {}  # since when
        self._watchers = 0
        self._stop = threading.Event()
        self._monitor = EventLoopMonitor(self._interval_s)

    def wait(self, name: str) -> Wait:
        """Name the wait while the block runs, e.g. `tool:python rollout train/3/task7/0.1`."""
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
        self._monitor.begin()
        threading.Thread(target=self._watch, args=(self._stop,), name="ramet-watchdog", daemon=True).start()

    def _end(self) -> None:
        self._stop.set()
        self._monitor.end()

    def _watch(self, stop: threading.Event) -> None:
        warned_at, blocked_warned_at = 0.0, dict[str, float]()  # the latter for each function
        while not stop.wait(self._interval_s):
            now = time.monotonic()
            self._warn_if_blocked(now, blocked_warned_at)
            message = self._oldest(now) if now - warned_at >= self.threshold_s else None
            if message:
                warned_at = now
                logger.warning("%s", message)

    def _warn_if_blocked(self, now: float, warned_at: dict[str, float]) -> None:
        """Warn once for each function that blocks the loop, and again after the threshold."""
        stuck_s = self._monitor.stuck_s()
        if stuck_s <= min(BLOCKED_S, self.threshold_s):
            return
        where = self._monitor.where()
        if now - warned_at.get(function_of(where), -self.threshold_s) < self.threshold_s:
            return
        warned_at[function_of(where)] = now
        line = f" in {where}" if where else ""
        logger.warning("the event loop has been blocked for %.1f s%s: no rollout can continue meanwhile", stuck_s, line)

    def _current(self) -> list[tuple[Wait, float]]:
        """Copy the waits. The loop's thread may enter or leave one in the midst of it; then they are copied again."""
        while True:
            try:
                return list(self._waits.items())
            except RuntimeError:  # "dictionary changed size" or "keys changed during iteration"
                continue

    def _oldest(self, now: float) -> str | None:
        waits = self._current()
        if not waits:
            return None
        oldest, since = min(waits, key=lambda wait: wait[1])
        if now - since <= self.threshold_s:
            return None
        return f"oldest wait: {oldest.name} for {now - since:.1f} s ({len(waits)} waits in all)"


async def close_quietly(closing: Awaitable[None], what: str, watchdog: Watchdog) -> None:
    """Wait for a tool or a state to close, for so long. It must not change what a rollout was: errors are logged."""
    task = asyncio.create_task(_without_exit(closing))
    try:
        with watchdog.wait(what):
            await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)
        if not task.done():
            logger.warning("%s did not return within %g s", what, CLOSE_TIMEOUT_S)
        elif not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("%s failed: %s: %s", what, type(error).__name__, error)
    finally:
        task.cancel()


async def _without_exit(work: Awaitable[None]) -> None:
    """asyncio would end the run with a task's SystemExit."""
    try:
        await work
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from error
