"""Errors of the operating system as one line: the path, the problem, and a remedy.

The system names the file that it cannot open, and none when a write fails; `naming` adds that path where it is known.
Libraries that write files in C++ or Rust raise their own errors for a full disk; `naming` makes an `OSError` of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from ramet.io.json_values import visible

_HELP = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "your quota there is used up, so delete something of yours",
    errno.EFBIG: "the limit for one file is reached (`ulimit -f`, or the file system's own), so raise it",
    errno.EROFS: "its disk can only be read, so make it writable or choose another folder",
    errno.EACCES: "give this user the right to it, or choose another folder",
    errno.EPERM: "give this user the right to it, or choose another folder",
    errno.ENOENT: "if it was deleted or moved meanwhile, put it back",
    errno.ESTALE: "look whether its network disk is still there",
    errno.EMFILE: "raise the limit for open files (`ulimit -n`)",
    errno.ENFILE: "this machine has too many files open, so end something",
}
_RUST = re.compile(r"\(os error (\d+)\)|\bOs \{ code: (\d+)")  # how safetensors writes the system's number
_TORCH = re.compile(r"PytorchStreamWriter failed[^\n]*|unexpected pos \d+ vs \d+")  # torch.save: no number at all
_FULL = 1 << 20  # bytes: with less free space than that, a failed write of torch's is one to a full disk


def os_error_text(error: OSError) -> str:
    """One line. An error without a number, which libraries raise by this name, has its own text."""
    if error.errno is None:
        return visible(" ".join(str(error).split()))
    reason = error.strerror or os.strerror(error.errno)
    paths = [os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, str | bytes | Path)]
    where = f"{' -> '.join(paths)}: " if paths else ""
    advice = _HELP.get(error.errno)
    return visible(f"{where}{reason}{f'; {advice}' if advice else ''}".replace("\n", " "))


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an `OSError` of the block that names no file name `path`, the file or folder that is written.

    What safetensors and torch raise if a file cannot be written is raised as such an `OSError`.
    """
    try:
        yield
    except BaseException as error:  # torch.distributed.checkpoint's is not an `Exception`
        os_error = _os_error(error, path)
        if os_error is None or os_error is error:
            raise
        raise os_error from error


def _os_error(error: BaseException, path: Path) -> OSError | None:
    """The system's error that this one is or was caused by, with a path; None if it is of another kind."""
    if failures := getattr(error, "failures", None):  # of torch's CheckpointException: rank -> error, traceback
        return _os_error(failures[min(failures)][0], path)
    if isinstance(error, OSError):
        unnamed = error.errno is not None and error.filename is None
        return OSError(error.errno, error.strerror, str(path)) if unnamed else error
    text = str(error)
    if type(error).__name__ == "SafetensorError" and (match := _RUST.search(text)):
        number = int(match[1] or match[2])
        return OSError(number, os.strerror(number), str(path))
    if isinstance(error, RuntimeError) and (said := _TORCH.search(text)):
        free = _free_bytes(path)
        if free is not None and free < _FULL:
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        room = "" if free is None else f"{free} bytes are free there; "
        return OSError(
            errno.EIO, f"cannot be written ({said[0]}); {room}look at quota, file size limit and disk", str(path)
        )
    return None


def _free_bytes(path: Path) -> int | None:
    """Return the free bytes on the disk of `path`, which need not be there yet."""
    there = next((folder for folder in (path, *path.absolute().parents) if folder.exists()), None)
    with contextlib.suppress(OSError):
        return None if there is None else shutil.disk_usage(there).free
    return None
