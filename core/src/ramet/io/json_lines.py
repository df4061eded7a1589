"""Files of JSON lines that processes append to, and that a kill may tear in the middle of a line."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from ramet.io.json_values import as_object
from ramet.io.os_errors import naming

logger = logging.getLogger(__name__)
BLOCK = 1 << 20  # that is read at once, from the end


def json_line(value: Any) -> bytes:
    """One line, ASCII, with its end."""
    return json_text(value).encode("ascii") + b"\n"


def json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=as_object)


def append_line(path: Path, line: str, *, sync: bool = True) -> int:
    """Append `line`, ASCII without its end, completely or not at all: a failed write (full disk) is cut off again.
    Returns the byte at which it begins.

    It is on disk when this returns; without `sync` it survives the end of this process, but not of the machine. An
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


def cut_torn_end(path: Path) -> int:
    """Cut a last line without an end off the file, report it, and return the bytes that are left; 0 for a missing file.

    Only the end is read: such files may be larger than the memory.
    """
    if not path.exists():
        return 0
    with naming(path), path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        whole, start = 0, size
        while start > 0 and not whole:
            start, end = max(0, start - BLOCK), start
            file.seek(start)
            whole = start + at + 1 if (at := file.read(end - start).rfind(b"\n")) >= 0 else 0
        if whole < size:
            logger.warning("%s: dropped a torn last line of %d bytes", path, size - whole)
            file.truncate(whole)
    return whole
