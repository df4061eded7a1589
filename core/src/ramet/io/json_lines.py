"""Files of JSON lines that processes append to, and that a kill may tear in the middle of a line."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ramet.io.os_errors import naming

logger = logging.getLogger(__name__)


def append_line(path: Path, line: str, *, sync: bool = True) -> int:
    """Append `line`, ASCII without its end, whole or not at all: a failed write (full disk) is cut off again. Returns
    the byte at which it begins.

    It is on disk when this returns; without `sync` it survives the end of this process, but not that of the machine. An
    `OSError` names `path`.
    """
    data = line.encode("ascii") + b"\n"
    with naming(path), path.open("ab", buffering=0) as file:
        start = file.tell()
        try:
            rest = memoryview(data)
            while rest:  # the system takes what fits; it says why it takes no more when it is asked again
                rest = rest[file.write(rest) :]
            if sync:
                os.fsync(file.fileno())
        except OSError:
            file.truncate(start)
            raise
    return start


def cut_torn_line(path: Path) -> bytes:
    """Cut a last line without an end off the file, report it, and return all whole lines; a missing file has none."""
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        logger.warning("%s: dropped a torn last line of %d bytes", path, len(data) - whole)
        with naming(path), path.open("r+b") as file:
            file.truncate(whole)
    return data[:whole]
