"""Runs that end early: the handler of signals, its exception, and the command that resumes the run."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from ramet.config.sections import TRUST
from ramet.errors import ConfigError, InfraError, PluginError
from ramet.io.terminal_line import erase_at_once

if TYPE_CHECKING:  # the command line loads this module for `ramet --help`
    from ramet.config.resolved import Resolved

logger = logging.getLogger(__name__)
OK, USER, INTERNAL = 0, 1, 2  # exit codes: done, the user's mistake or a broken plugin, a failure of other causes
VARIABLES = ("PYTHONPATH", "RAMET_PLUGINS", "RAMET_BLOCK_PLUGINS")  # that say which plugins there are
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """A signal ended the run. Its text names the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number  # as a shell reports a process that the signal ended


def exit_code_of(error: BaseException) -> int:
    """The exit code of a job that this error ends."""
    if isinstance(error, KeyboardInterrupt):
        return error.code if isinstance(error, Stopped) else 128 + signal.SIGINT
    return USER if isinstance(error, ConfigError | PluginError) else INTERNAL


class StopListener:
    """The first signal raises `Stopped` where the process is, unless `_defers`; the second ends the process at once."""

    def __init__(self) -> None:
        self.signal: int | None = None  # the first one that came
        self._deferred = False
        self._said = ""

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
    def deferred(self, said: str = "") -> Iterator[None]:
        """Defer the signal: inside, the first one raises nothing; `asked` is then true, and `said` is printed."""
        self._deferred, self._said = True, said
        try:
            yield
        finally:
            self._deferred, self._said = False, ""

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
        if self._said:
            write_stderr(f"{signal.Signals(number).name}: {self._said}")


def write_stderr(text: str) -> None:
    """Write past the log, whose stream may be in the middle of a write when a signal comes."""
    erase_at_once()
    os.write(2, f"{text}\n".encode())


@contextmanager
def resumable(resolved: Resolved, name: str) -> Iterator[None]:
    """Log the command that resumes the run if a signal ends the block, or an error that is fixed outside of the
    configuration: a lost worker, a full disk. Errors that a resume would meet again (a mistake, a defect) pass without
    it.
    """
    try:
        yield
    except (KeyboardInterrupt, InfraError, OSError):
        logger.warning("resume with: %s", resume_command(resolved, name))
        raise


def resume_command(resolved: Resolved, name: str) -> str:
    """The shell command that resumes this run, in the current working directory. Of a repeated key the last counts."""
    last_by_key = {text.partition("=")[0].lstrip("+~"): text for text in resolved.overrides}
    last_by_key.pop("run.name", None)
    folder = [] if resolved.config_dir is None else ["--config-dir", str(resolved.config_dir)]
    trusted = [word for file in resolved.trusted for word in (TRUST, str(file))]
    command = shlex.join(["ramet", resolved.job, *folder, *trusted, *last_by_key.values(), f"run.name={name}"])
    return " ".join([*plugin_variables(), command])


def plugin_variables() -> Iterator[str]:
    """Settings of the environment without which plugins of this run would be missing."""
    if os.environ.get("RAMET_PLUGINS") or os.environ.get("RAMET_BLOCK_PLUGINS"):
        set_here = ((name, os.environ.get(name)) for name in VARIABLES)
        yield from (f"{name}={shlex.quote(value)}" for name, value in set_here if value)
