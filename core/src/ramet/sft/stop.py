"""SIGTERM and SIGINT during `ramet sft`: the step that has begun is carried through and saved, then the run ends."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from ramet.tracking.stopped import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Listens for the signals. The first raises `Stopped` where the process is, or, inside `deferred`, is noted; the
    second ends the process at once.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the first one that came
        self._deferred = False

    @property
    def asked(self) -> bool:
        return self.signal is not None

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Only a main thread can listen. A signal that is ignored, as under nohup, stays so."""
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
        """A signal raises nothing: `asked` tells of it."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            # Past the log, whose stream may be in the middle of a write.
            os.write(2, f"{signal.Signals(number).name} again: ended at once\n".encode())
            os._exit(128 + number)
        self.signal = number
        if not self._deferred:
            raise Stopped(number)
