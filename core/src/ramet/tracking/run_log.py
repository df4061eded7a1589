"""`run.log` in a run's directory: what the console showed as lines, with times, over all attempts.

Records are kept from the beginning of a job and written when the run's directory is known. Errors of the file never
stop a run: what could not be written is lost, and the console says so once.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from ramet.errors import ConfigErrors
from ramet.io import repeats
from ramet.tracking.console import StepLines
from ramet.tracking.log import harmless

MAX_KEPT = 10_000  # records before the directory is known
logger = logging.getLogger(__name__)
steps_logger = logging.getLogger(f"{__name__}.steps")  # only for the file: the console has the same as a table
steps_logger.propagate = False
steps_logger.setLevel(logging.INFO)


class RunLog(logging.Handler):
    """One line per record: time, level, message; the lines of a longer message are indented."""

    def __init__(self) -> None:
        super().__init__()
        self._file: BinaryIO | None = None
        self._kept: list[bytes] = []
        self._guard = threading.RLock()
        self._failed = False

    def write_to(self, path: Path) -> None:
        """Append what was kept and what follows. A line that an earlier process left unfinished is ended."""
        with self._guard:
            try:
                self._file = path.open("ab", buffering=0)
                if self._file.tell() and not _ends_with_newline(path):
                    self._file.write(b"\n")
            except OSError as error:
                self._fail(error)
                return
            kept, self._kept = self._kept, []
            self._write(b"".join(kept))

    def emit(self, record: logging.LogRecord) -> None:
        self.add(record.levelname, harmless(self.format(record)), record.created)

    def add(self, level: str, text: str, when: float | None = None) -> None:
        """One line that is not a log record. `when`: seconds since 1970; None: now."""
        moment = datetime.now() if when is None else datetime.fromtimestamp(when)
        first, *rest = text.split("\n")
        lines = [f"{moment:%Y-%m-%d %H:%M:%S} {level:<7} {first}", *(f"  {line}" for line in rest)]
        self._write("".join(f"{line}\n" for line in lines).encode(errors="backslashreplace"))

    def close(self) -> None:
        with self._guard:
            file, self._file = self._file, None
            self._kept = []
            if file is not None:
                file.close()
        super().close()

    def _write(self, lines: bytes) -> None:
        with self._guard:
            if self._failed:
                return
            if self._file is None:
                self._kept = [*self._kept[-MAX_KEPT + 1 :], lines]
                return
            try:
                self._file.write(lines)
            except OSError as error:
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._failed = True
        logger.warning("the log of the run cannot be written any more: %s", error)


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"


class StepLog:
    """The tracker that writes each step's line into the run's log."""

    def __init__(self, total_steps: int) -> None:
        self._lines = StepLines(total_steps)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for line in self._lines.lines(step, metrics, left=None):
            steps_logger.info("%s", line)

    def rewind(self, step: int) -> None:
        """Do nothing: what was written is not taken back, the log has all attempts."""

    def close(self) -> None:
        """Do nothing: every line is written."""


@contextlib.contextmanager
def recording() -> Iterator[RunLog]:
    """Keep what is logged from now on, for `write_to`. The error that ends the job is its last line."""
    log, loggers = RunLog(), (logging.getLogger(), steps_logger)
    log.setFormatter(logging.Formatter("%(message)s"))
    for source in loggers:
        source.addHandler(log)
    repeats.forget()
    try:
        yield log
    except BaseException as error:
        repeats.report(logger)
        log.add(*_reason(error))
        raise
    finally:
        repeats.report(logger)
        for source in loggers:
            source.removeHandler(log)
        log.close()


def _reason(error: BaseException) -> tuple[str, str]:
    """Level and text."""
    if isinstance(error, KeyboardInterrupt):  # `Stopped` names the signal
        return "WARNING", f"stopped by {error}" if str(error) else "interrupted"
    if isinstance(error, ConfigErrors):
        return "ERROR", harmless("\n".join(error.problems))
    return "ERROR", harmless(f"{type(error).__name__}: {error}")
