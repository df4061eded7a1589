"""A temporary folder of a process. The next process that makes one removes folders that killed processes left."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def process_folder(prefix: str) -> Iterator[Path]:
    """Make an empty folder that only this user may open, and remove it at the end.

    Its name begins with `prefix`. First the folders with this prefix whose processes are dead are removed: each process
    holds a lock of its folder, which the kernel frees with the process, also after kill -9.
    """
    for old in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # it is gone, another user's, or on a file system without locks
            if (lock := _lock(old)) is not None:
                shutil.rmtree(old, ignore_errors=True)
                os.close(lock)
    folder, lock = _locked_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _locked_folder(prefix: str) -> tuple[Path, int | None]:
    """A new folder and its lock. Until it is locked, another process may take it for a dead one's.

    The lock is None where the file system has none: then others cannot take the folder for a dead one's, either.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            lock = _lock(folder)
        except OSError:
            return folder, None
        if lock is not None:
            if folder.exists():
                return folder, lock
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """The lock of a folder; None if a process has it. Raises `OSError` if it cannot be locked at all."""
    import fcntl  # where there is none, no run begins (`runs/lock.py`)

    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except OSError:
        os.close(file)
        raise
    return file
