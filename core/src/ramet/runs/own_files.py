"""Files of a run directory that Ramet has written, known by their names: only these are deleted or replaced.

A directory without a manifest is taken over only if it has exactly the files of a start that was killed before it could
write one: the lock, the two folders, then (only together with those) configuration, overrides and the jobs' first
files.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from ramet.errors import ConfigError
from ramet.runs.manifest import MANIFEST, read_manifest

LOCK = "LOCK"
FOLDERS = ("rollouts", "checkpoints")
SERVICES = "services"  # of components, which start before the manifest is written
UNFINISHED = "results.json.partial.jsonl"  # of `ramet eval`
EVALUATED = ("results.tasks.jsonl", "results.rollouts.jsonl.gz")  # of `ramet eval`, next to results.json
SFT_SUMMARY = "sft.json"  # of a finished `ramet sft`, which need not have a checkpoint
FIRST_FILES = ("config.yaml", "overrides.txt", UNFINISHED)
NO_LINKS = (  # written through their names
    *FOLDERS, SERVICES, "model", "adapter", "metrics.jsonl", "run.log", UNFINISHED, *EVALUATED, "sft_loss.png", "wandb",
    "tensorboard",
)  # fmt: skip
RANDOM = r"[0-9a-f]{8}"  # in the names of temporary files: ramet/io/atomic.py
IN_CHECKPOINTS = re.compile(rf"layout\.json|\.layout\.json\.{RANDOM}\.tmp")  # of `ramet sft`
TORN = re.compile(
    r"\.(?:(?:config\.yaml|overrides\.txt|manifest\.json|metrics\.jsonl|sft\.json|results\.json"
    rf"|results\.json\.partial\.jsonl|results\.tasks\.jsonl|results\.rollouts\.jsonl\.gz|report\.html)\.{RANDOM}|ranks\.\d+)\.tmp"
)
# Files, and folders of parts that were being filled or removed.
TORN_ROLLOUTS = re.compile(rf"\.(?:step|valid)_\d+(?:\.jsonl\.gz)?\.{RANDOM}\.(?:tmp|old)")
LOCK_TEXT = '{"host"'  # how the text of a lock begins, which a kill may have cut
SHOWN = 3


def check_run_folder(path: Path) -> None:
    """Raise `ConfigError` if `path` has other files than a run, or a start that was killed. Only reads.

    A run of another person may contain links, and a resumed run must not write to their targets.
    """
    if (path / MANIFEST).exists():
        read_manifest(path / MANIFEST)
        if links := [name for name in NO_LINKS if (path / name).is_symlink()]:
            raise ConfigError(
                f"run directory {str(path)!r} contains links ({', '.join(links)}), and a run writes only into its own "
                "directory; replace the links by their targets, or choose another run.name"
            )
        return
    if foreign := sorted(_foreign(path)):
        shown = ", ".join(foreign[:SHOWN]) + (", …" if len(foreign) > SHOWN else "")
        raise ConfigError(
            f"run directory {str(path)!r} has files that no run has written ({shown}), and no {MANIFEST} of a run; "
            "choose another run.name or run.root"
        )


def remove_torn(path: Path) -> None:
    """Delete what writers left that were killed before they could rename."""
    for torn in torn_files(path):
        if torn.is_dir() and not torn.is_symlink():
            shutil.rmtree(torn)
        else:
            torn.unlink()


def torn_files(path: Path) -> Iterator[Path]:
    """Yield the files and folders that `remove_torn` deletes. Only a process that holds the run's lock knows that they
    are torn.
    """
    for folder, names in ((path, TORN), (path / FOLDERS[0], TORN_ROLLOUTS)):
        if not folder.is_symlink():
            yield from (file for file in folder.glob(".*") if names.fullmatch(file.name))


def has_saved(path: Path, job: str) -> bool:
    """Whether the run in `path` has anything that a later process would continue from. Of an evaluation that is not
    known: its results may be elsewhere.
    """
    if job == "eval" or (path / SFT_SUMMARY).exists():
        return True
    folder = path / FOLDERS[1]
    names = os.listdir(folder) if folder.is_dir() else []
    return any(not name.startswith(".") and not IN_CHECKPOINTS.fullmatch(name) for name in names)


def _foreign(path: Path) -> Iterator[str]:
    if not path.is_dir():
        return
    started = is_lock(path / LOCK) and all((path / folder).is_dir() for folder in FOLDERS)
    for entry in os.scandir(path):
        if entry.name in FOLDERS and entry.is_dir(follow_symlinks=False):
            allowed = IN_CHECKPOINTS if entry.name == "checkpoints" else TORN_ROLLOUTS
            yield from (f"{entry.name}/{name}" for name in os.listdir(entry.path) if not allowed.fullmatch(name))
        elif entry.name == LOCK:
            if not is_lock(path / LOCK):
                yield LOCK
        elif not (started and _is_first(entry)):
            yield entry.name


def _is_first(entry: os.DirEntry[str]) -> bool:
    """Whether the jobs write the entry before the manifest."""
    if entry.is_dir(follow_symlinks=False):
        return entry.name == SERVICES
    is_named = entry.name in FIRST_FILES or TORN.fullmatch(entry.name) is not None
    return is_named and entry.is_file(follow_symlinks=False)


def is_lock(path: Path) -> bool:
    """Whether the file is the lock of a run: empty, or with an owner's name, which may be torn."""
    if path.is_symlink() or not path.is_file():
        return False
    text = path.read_bytes()[: len(LOCK_TEXT)].decode(errors="replace")
    return LOCK_TEXT.startswith(text)


def is_private(run: Path) -> bool:
    """Whether only its owner may read a run (`run.private`), so that what is made of it must not be for others."""
    return not run.stat().st_mode & 0o077


@contextlib.contextmanager
def file_rights(*, private: bool) -> Iterator[None]:
    """Make files of the block for their owner only if `private`, also files of processes that it starts."""
    before = os.umask(0o077) if private else None
    try:
        yield
    finally:
        if before is not None:
            os.umask(before)


def umask() -> int:
    """Permissions that this process withholds from new files."""
    os.umask(mask := os.umask(0o077))
    return mask
