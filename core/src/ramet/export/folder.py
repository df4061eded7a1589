"""A new folder that appears complete or not at all."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from ramet.errors import ConfigError, InfraError
from ramet.io.atomic import share_rights, sync, sync_tree, temporary_folder
from ramet.io.os_errors import naming, os_error_text


def require_new(out: Path) -> None:
    """Raise `ConfigError` for what is there and is not an empty folder."""
    if out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir()))):
        raise ConfigError(f"{out} is not an empty folder; nothing is overwritten, so name a new one")


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `out` at the end of the block, or deleted if it raises.

    Raises `InfraError` where the disk refuses it.
    """
    folder: Path | None = None
    try:
        with naming(out):
            folder = temporary_folder(out)
            yield folder
            share_rights(folder)
            sync_tree(folder)
            folder.replace(out)
            sync(out.parent)
    except OSError as error:
        raise InfraError(f"{out}: not written: {os_error_text(error)}") from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
