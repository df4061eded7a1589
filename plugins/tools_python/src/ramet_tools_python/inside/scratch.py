"""Removing a directory that a hostile program filled: very deep trees, odd names, directories without permissions.

Recursion and paths both fail on deep trees, so the walk holds one descriptor and goes up through `..`. That is safe
only after every process that could move directories is gone.
"""

from __future__ import annotations

import os


def remove(folder: str) -> None:
    """Remove `folder` and everything in it. Does nothing if it is gone; a link in its place is not followed."""
    empty(folder)
    if os.path.isdir(folder):
        os.rmdir(folder)


def empty(folder: str) -> None:
    """Remove everything in `folder`, and a link in its place."""
    if os.path.islink(folder):
        os.unlink(folder)
    elif os.path.isdir(folder):
        os.chmod(folder, 0o700)
        _empty(folder)


def _empty(folder: str) -> None:
    here = _enter(folder)
    above: list[tuple[str, list[str]]] = []  # name of each directory on the way down, and its siblings still to do
    todo = _remove_files(here)
    while todo or above:
        if todo:
            name = todo.pop()
            os.chmod(name, 0o700, dir_fd=here)
            here = _enter(name, here)
            above.append((name, todo))
            todo = _remove_files(here)
        else:
            name, todo = above.pop()
            here = _enter("..", here)
            os.rmdir(name, dir_fd=here)
    os.close(here)


def _enter(name: str, here: int | None = None) -> int:
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
    if here is not None:
        os.close(here)
    return inner


def _remove_files(directory: int) -> list[str]:
    """Remove all entries that are no directories; returns the names of those that are."""
    with os.scandir(directory) as listing:
        entries = list(listing)
    directories = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.name, dir_fd=directory)
    return directories
