"""Runs that a signal ends: who hears it, what is raised, and the command that goes on."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line loads this module for `ramet --help`
    from ramet.config.resolved import Resolved

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """A signal ended the run. Its text names the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number  # as a shell reports a process that the signal ended


class StopListener:
    """The first signal raises `Stopped` where the process is, unless `_defers`; the second ends the process at once."""

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
        """Inside, the first signal raises nothing; `asked` is then true."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _defers(self) -> bool:
        """Called with the first signal, which is kept already. True: it raises nothing."""
        return self._deferred

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            say(f"{signal.Signals(number).name} again: ended at once")
            os._exit(128 + number)
        self.signal = number
        if not self._defers():
            raise Stopped(number)


def say(text: str) -> None:
    """Past the log, whose stream may be in the middle of a write when a signal comes."""
    os.write(2, f"{text}\n".encode())


def resume_command(resolved: Resolved, name: str) -> str:
    """The command line that goes on with this run, in the working directory of this one."""
    given = [text for text in resolved.overrides if text.partition("=")[0].lstrip("+~") != "run.name"]
    place = [] if resolved.config_dir is None else ["--config-dir", str(resolved.config_dir)]
    return shlex.join(["ramet", resolved.job, *place, *given, f"run.name={name}"])
