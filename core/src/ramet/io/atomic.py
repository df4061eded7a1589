"""Files that are replaced at once: after a kill or a power cut a file has its old bytes or its new ones.

The new bytes go to a temporary file `.NAME.RANDOM.tmp` in the same folder, which is synced and renamed; then the folder
is synced, which makes the rename durable. The temporary file is created exclusively under a random name, so it never
writes to a prepared link or file. A target that is a link is replaced, never followed.

Folders likewise: `temporary_folder` is renamed when it is complete, `remove_folder` renames before it deletes.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from ramet.io.os_errors import naming

_REMOVED = re.compile(r"\.(.+)\.[0-9a-f]{8}\.old")  # what `remove_folder` makes of a name


def write_file(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Replace `path`; text is written as UTF-8. Arguments and errors as of `open_atomic`."""
    with open_atomic(path, private=private) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def open_atomic(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends, and is deleted if the block raises.

    It is never readable or writable for more users than the file that it replaces, nor than the umask allows, and only
    for its owner if `private`. Missing parent folders are made. An `OSError` names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_path(path)
    try:
        with open(_create(temporary, _mode(path, private)), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary), str(path.parent)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):  # the first error says more, such as that the folder cannot be written
            temporary.unlink(missing_ok=True)


def temporary_folder(path: Path) -> Path:
    """A new folder `.NAME.RANDOM.tmp` next to `path`, which the caller fills, syncs and renames to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = _temporary_path(path)
    folder.mkdir()
    return folder


def sync(path: Path) -> None:
    """Return when a file's content, or a folder's entries, have reached the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with naming(path):
            os.fsync(handle)
    finally:
        os.close(handle)


def share_rights(folder: Path) -> None:
    """Let those who may read the folder read its files: safetensors makes its files for their owner only."""
    allowed = folder.stat().st_mode & 0o666
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            path.chmod(allowed)


def sync_tree(folder: Path) -> None:
    """`sync` of every file and folder below `folder`, and of itself."""
    below = sorted(folder.rglob("*"))
    for path in [*(path for path in below if path.is_file()), *(path for path in below if path.is_dir()), folder]:
        sync(path)


def remove_folder(folder: Path) -> None:
    """Delete a folder so that no kill leaves half of it under its name: it is renamed to `.NAME.RANDOM.old` first.

    What a kill leaves then, or cannot be deleted, `finish_removals` deletes. Raises `OSError` if it cannot be renamed.
    """
    aside = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.old")
    folder.rename(aside)
    sync(aside.parent)
    shutil.rmtree(aside, ignore_errors=True)


def finish_removals(parent: Path, names: re.Pattern[str]) -> list[Path]:
    """Delete the rests of folders in `parent` that `remove_folder` had begun to delete, and return their paths.

    `names` are those that they had, so that only folders of the caller's own kind are touched. No link is followed.
    """
    candidates = [(path, _REMOVED.fullmatch(path.name)) for path in parent.glob(".*.old")]
    folders = [path for path, match in candidates if match and names.fullmatch(match[1])]
    folders = [path for path in folders if path.is_dir() and not path.is_symlink()]
    for path in folders:
        shutil.rmtree(path, ignore_errors=True)
    return folders


def _temporary_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def _create(temporary: Path, mode: int) -> int:
    return os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def _mode(path: Path, private: bool) -> int:
    """Permissions before the umask."""
    mode = 0o600 if private else 0o666
    with contextlib.suppress(FileNotFoundError):
        old = path.lstat().st_mode
        if stat.S_ISREG(old):
            mode &= old
    return mode
