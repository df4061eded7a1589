"""The last line of a terminal, drawn again and again, while full lines are printed above it by anyone.

Not `rich.live`, for three reasons. It hides the cursor, which a process that ends at once (a second Ctrl-C) leaves
hidden. It sends stderr to stdout. It breaks the lines of other writers at the width of the terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO, cast

ERASE = "\r\x1b[K"
_shown: set[int] = set()  # file descriptors of terminals whose last line is drawn now


def is_live(stream: TextIO) -> bool:
    """Whether a line may be drawn there: a terminal that can erase one, and its output is not recorded (CI)."""
    return stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown") and not os.environ.get("CI")


def erase_at_once() -> None:
    """Erase the lines from a signal handler, which may write nothing through a stream."""
    for descriptor in list(_shown):
        with contextlib.suppress(OSError):
            os.write(descriptor, ERASE.encode())


class TerminalLine:
    """Draws on stdout while `held`. Meanwhile what Python writes to stdout and stderr erases the line first."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._out = sys.stdout
        self._drawn = False
        self._unfinished = False  # somebody has written a part of a line, and may continue it
        self._lost = False  # the terminal is gone, or the line's time is over

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Streams are as before afterwards, and the line is erased."""
        before = sys.stdout, sys.stderr
        self._out = sys.stdout
        sys.stdout = cast(TextIO, _ErasingStream(before[0], self))
        if before[1].isatty():
            sys.stderr = cast(TextIO, _ErasingStream(before[1], self))
        ours = sys.stdout, sys.stderr
        try:
            yield
        finally:
            self.erase()
            self._lost = True  # later lines are dropped
            if sys.stdout is ours[0]:
                sys.stdout = before[0]
            if sys.stderr is ours[1]:
                sys.stderr = before[1]

    def draw(self, text: str) -> None:
        """`text` is one line, shorter than the terminal is wide. Not drawn after a part of a line, or in a job that
        runs in the background of its shell.
        """
        with self._lock:
            if not self._unfinished and not self._lost and self._in_foreground():
                self._send(f"\r{text}\x1b[K")
                self._drawn = True
                _shown.add(self._out.fileno())

    def erase(self) -> None:
        with self._lock:
            if self._drawn:
                self._drawn = False
                _shown.discard(self._out.fileno())
                self._send(ERASE)

    def write(self, stream: TextIO, text: str) -> int:
        """Write what others print."""
        with self._lock:
            self.erase()
            written = stream.write(text)
            if text:
                self._unfinished = not text.endswith("\n")
            return written

    def _send(self, text: str) -> None:
        try:
            self._out.write(text)
            self._out.flush()
        except (OSError, ValueError):  # hung up, or closed: there is nothing to draw on any more
            self._lost = True

    def _in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._out.fileno()) == os.getpgrp()
        except OSError:  # not the terminal that controls this process, so it has no background
            return True


class _ErasingStream:
    """A stream as it is, but for the line."""

    def __init__(self, stream: TextIO, line: TerminalLine) -> None:
        self._stream = stream
        self._line = line

    def write(self, text: str) -> int:
        return self._line.write(self._stream, text)

    def writelines(self, lines: list[str]) -> None:
        self._line.write(self._stream, "".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
