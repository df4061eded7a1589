"""A tracker in a thread of its own: one that fails, is slow or hangs neither stops nor slows a run.

Its calls wait in a queue of bounded length. What comes while the queue is full is dropped, and what was not handed over
is logged once, at the end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from ramet.event_loop import left_threads
from ramet.plugins.plugin_code import raised_at
from ramet.types import OutcomeTracker, Tracker

logger = logging.getLogger(__name__)
CAPACITY = 1000  # calls
SLOW_S = 60.0  # a call that takes longer is reported, and not waited for at the end of the run
CLOSE_S = 20.0  # for a tracker to take in what waits and to close, at the end of the run
EXIT_S = 5.0  # for what one that has not closed does when the process ends
Call = Callable[[Tracker], None]
_left: list[threading.Thread] = []  # of trackers that had not closed when their run ended


class BackgroundTracker:
    """`make` and all calls of what it made run in one thread, in order. No method raises what the tracker raises."""

    def __init__(
        self, name: str, make: Callable[[], Tracker], *, capacity: int = CAPACITY, slow_s: float = SLOW_S
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.slow_s = slow_s
        self.calls = self.failed = self.dropped = 0
        self._make = make
        self._waiting: deque[Call] = deque()
        self._changed = threading.Condition()
        self._busy_since: float | None = time.monotonic()  # None: waits for a call
        self._told_slow = False
        self._is_gone = False  # it could not be made: there is nothing to call
        self._is_left = False  # the run has ended without it
        self._exit_code: int | None = None  # None: the run has not ended
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        kept = dict(metrics)  # the caller may change its own later
        self._put(lambda tracker: tracker.log(step, kept))

    def rewind(self, step: int) -> None:
        self._put(lambda tracker: tracker.rewind(step))

    def end(self, exit_code: int) -> None:
        """Close the tracker after what waits. Returns at once."""
        with self._changed:
            if self._exit_code is None:
                self._exit_code = exit_code
                self._changed.notify()

    def close(self, wait_s: float = CLOSE_S) -> None:
        """End it, and wait for it; a tracker that hangs already is not waited for."""
        self.end(0)
        if not self._is_slow():
            self._thread.join(max(0.0, wait_s))
        with self._changed:
            unmade = len(self._waiting)
            self._waiting.clear()
        if self._is_gone:
            return
        counts = {
            f"{self.failed} of {self.calls} calls failed": self.failed > 1,  # the first was reported
            f"dropped {self.dropped} of {self.calls} calls (queue full)": self.dropped > 0,
            f"{unmade} of {self.calls} calls were not made": unmade > 0,
        }
        parts = [text for text, is_reported in counts.items() if is_reported]
        if self._thread.is_alive():
            parts.append("it did not close in time; the run ends without it")
            self._is_left = True
            _left.append(self._thread)
        if parts:
            logger.warning("tracker %s: %s", self.name, "; ".join(parts))

    def _put(self, call: Call) -> None:
        with self._changed:
            if self._is_gone:
                return
            self.calls += 1
            if len(self._waiting) < self.capacity:
                self._waiting.append(call)
                self._changed.notify()
            else:
                self.dropped += 1
        if not self._told_slow and self._is_slow():
            self._told_slow = True
            logger.warning("tracker %s has not returned for %g s; the run continues without it", self.name, self.slow_s)

    def _is_slow(self) -> bool:
        since = self._busy_since
        return since is not None and time.monotonic() - since > self.slow_s

    def _work(self) -> None:
        try:
            tracker = self._make()
        except (Exception, SystemExit) as error:  # the boundary: whatever a tracker raises, the run continues
            if not self._is_left:
                message = "tracker %s could not be made, the run continues without it: %r%s"
                logger.warning(message, self.name, error, raised_at(error))
            with self._changed:
                self._is_gone = True
                self._waiting.clear()
            return
        while (call := self._next()) is not None:
            self._try(call, tracker)
        exit_code = self._exit_code
        if exit_code is not None and isinstance(tracker, OutcomeTracker):
            ended = tracker.ended
            self._try(lambda _: ended(exit_code), tracker)
        self._try(lambda tracker: tracker.close(), tracker)

    def _next(self) -> Call | None:
        """The next call, waited for; None after the last one, when the run has ended."""
        with self._changed:
            self._busy_since = None
            self._changed.wait_for(lambda: self._waiting or self._exit_code is not None)
            self._busy_since = time.monotonic()
            return self._waiting.popleft() if self._waiting else None

    def _try(self, call: Call, tracker: Tracker) -> None:
        try:
            call(tracker)
        except (Exception, SystemExit) as error:  # the boundary, as above
            self.failed += 1
            if self.failed == 1 and not self._is_left:
                logger.warning("tracker %s failed, the run continues: %r%s", self.name, error, raised_at(error))


def exit_soon(code: int, within_s: float = EXIT_S) -> None:
    """End a process that does nothing more with this exit code after `within_s` if a tracker hangs, or what a
    plugin called in a thread. Threads of its own and what it registered with `atexit` (wandb does) would keep the
    process for as long as it hangs.
    """
    if any(thread.is_alive() for thread in (*_left, *left_threads)):
        timer = threading.Timer(within_s, os._exit, (code,))
        timer.daemon = True
        timer.start()
