"""A line that says what a job is doing, when nothing was logged for half a minute: a file or a pipe shows no live line.

`doing` says what it is; outside of a `heartbeat` block it does nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)
QUIET_S = 25.0  # so that with a tick and a busy machine it is half a minute
TICK_S = 1.0


class _Heartbeat(logging.Handler):
    """Hears every line that Ramet logs, and knows when the last one was."""

    def __init__(self, quiet_s: float) -> None:
        super().__init__(logging.INFO)
        self._quiet_s = quiet_s
        self._last = self._began = time.monotonic()
        self.doing: Callable[[], str] = str  # no text: nothing is logged

    def emit(self, record: logging.LogRecord) -> None:
        self.spoke()

    def spoke(self) -> None:
        self._last = time.monotonic()

    def begin(self, doing: Callable[[], str]) -> None:
        self.doing, self._began = doing, time.monotonic()

    def beat(self) -> None:
        if time.monotonic() - self._last >= self._quiet_s and (text := self.doing()):
            logger.info("%s (%.0f s)", text, time.monotonic() - self._began)
            self.spoke()  # also where the level of the log hides the line


_active: list[_Heartbeat] = []


@contextmanager
def heartbeat(quiet_s: float = QUIET_S, tick_s: float = TICK_S) -> Iterator[None]:
    """Log, inside the block, what was given to `doing` last whenever nothing was logged for `quiet_s`."""
    own, over = _Heartbeat(quiet_s), threading.Event()

    def watch() -> None:
        while not over.wait(tick_s):
            own.beat()

    thread = threading.Thread(target=watch, name="ramet-heartbeat", daemon=True)
    root = logging.getLogger("ramet")
    root.addHandler(own)
    _active.append(own)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _active.remove(own)
        root.removeHandler(own)


def doing(what: str | Callable[[], str]) -> None:
    """Say what begins now; empty: nothing is logged of it. A function is called by another thread."""
    for active in _active[-1:]:
        active.begin((lambda: what) if isinstance(what, str) else what)


def spoke() -> None:
    """Say that something was printed past the log."""
    for active in _active[-1:]:
        active.spoke()
