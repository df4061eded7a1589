"""Removing a directory that a hostile program filled: very deep trees, odd names, directories without permissions.

Recursion and paths both fail on deep trees, so the walk keeps one descriptor and goes up through `..`. That leads
elsewhere if a process moves the directory meanwhile, so its target is checked before anything is removed.
"""

from __future__ import annotations

import contextlib
import os


def remove(folder: str) -> None:
    """Remove `folder` and everything in it. Does nothing if it is gone; a link with its name is not followed."""
    empty(folder)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(folder)


def empty(folder: str) -> None:
    """Remove everything in `folder`, or the link or file of that name."""
    while os.path.lexists(folder):
        try:
            if os.path.islink(folder) or not os.path.isdir(folder):
                os.unlink(folder)
            else:
                os.chmod(folder, 0o700)
                _Walk(folder).empty()
            return
        except FileNotFoundError:  # a slot that ends removes the same things: look again
            continue


class _Walk:
    """Empties one directory; `here` is the descriptor of the current folder."""

    def __init__(self, folder: str) -> None:
        self.here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def empty(self) -> None:
        try:
            self._descend()
        finally:
            os.close(self.here)

    def _descend(self) -> None:
        # Directories on the way down, each with its siblings still to do and the identity of the one above it.
        above: list[tuple[str, list[str], tuple[int, int]]] = []
        todo = self._remove_files()
        while todo or above:
            if todo:
                name = todo.pop()
                if self._remove_empty(name):
                    continue
                os.chmod(name, 0o700, dir_fd=self.here)
                from_where = self._identity()
                self._go(name)
                above.append((name, todo, from_where))
                todo = self._remove_files()
            else:
                name, todo, from_where = above.pop()
                self._go("..")
                if self._identity() != from_where:
                    raise FileNotFoundError(f"the directory above {name!r} was moved")  # begin again at the top
                os.rmdir(name, dir_fd=self.here)

    def _remove_empty(self, name: str) -> bool:
        """Most of many directories are: one call for each lets no program make them much faster than they are
        removed."""
        try:
            os.rmdir(name, dir_fd=self.here)
        except OSError:
            return False
        return True

    def _identity(self) -> tuple[int, int]:
        status = os.fstat(self.here)
        return status.st_dev, status.st_ino

    def _go(self, name: str) -> None:
        there = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self.here)
        os.close(self.here)
        self.here = there

    def _remove_files(self) -> list[str]:
        """Remove all entries that are not directories; returns the names of those that are."""
        with os.scandir(self.here) as listing:
            entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]
        for name, is_directory in entries:
            if not is_directory:
                os.unlink(name, dir_fd=self.here)
        return [name for name, is_directory in entries if is_directory]
