"""Runs that a signal ends: its handler, what is raised, and the command that resumes the run."""

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
        """Handle signals inside the block, in the main thread only. One that is ignored, as under nohup, stays so."""
        numbers = SIGNALS if threading.current_thread() is threading.main_thread() else ()
        handlers = {number: signal.getsignal(number) for number in numbers}
        replaced = {number: old for number, old in handlers.items() if old not in (signal.SIG_IGN, None)}
        for number in replaced:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            for number, old in replaced.items():
                signal.signal(number, old)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside, the first signal raises nothing; `asked` is then true."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _defers(self) -> bool:
        """Called at the first signal, when `signal` is set. True: nothing is raised."""
        return self._deferred

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            write_stderr(f"{signal.Signals(number).name} again: ended at once")
            os._exit(128 + number)
        self.signal = number
        if not self._defers():
            raise Stopped(number)


def write_stderr(text: str) -> None:
    """Past the log, whose stream may be in the middle of a write when a signal comes."""
    os.write(2, f"{text}\n".encode())


def resume_command(resolved: Resolved, name: str) -> str:
    """The command line that resumes this run, in the current working directory."""
    given = [text for text in resolved.overrides if text.partition("=")[0].lstrip("+~") != "run.name"]
    folder = [] if resolved.config_dir is None else ["--config-dir", str(resolved.config_dir)]
    return shlex.join(["ramet", resolved.job, *folder, *given, f"run.name={name}"])
