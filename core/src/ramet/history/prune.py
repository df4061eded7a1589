"""Removal of old files from run directories: old checkpoints of finished runs, and files of writers that were killed.

Never removed: anything of a run at work, the newest checkpoint that verifies and the best one, any checkpoint of a run
that did not finish (a resume continues from it), one that does not verify, `model/`, `adapter/`, exports, results,
rollouts, metrics, and `services/`, where components keep answers that were paid for. A temporary file that changed
within the last hour stays too: `ramet export` and `ramet report` write into runs without a lock. Only names that Ramet
gives are touched, and no link below the listed folder is followed.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ramet.errors import ConfigError
from ramet.history.summary import RunStatus, ended, folder_bytes, is_linked, run_folders, status_of
from ramet.io.atomic import remove_folder
from ramet.policy.checkpoint.checkpoint_list import CheckpointEntry, list_checkpoints
from ramet.policy.checkpoint.store import LEFTOVER
from ramet.runs.lock import RunLock
from ramet.runs.manifest import MANIFEST, read_manifest
from ramet.runs.own_files import LOCK, RANDOM, torn_files
from ramet.sft.checkpoints import chosen_checkpoint, list_sft_checkpoints

logger = logging.getLogger(__name__)
CHECKPOINTS = "checkpoints"
MODELS = re.compile(rf"\.(?:model|adapter)\.{RANDOM}\.tmp")  # folders that were being filled
DELETED = re.compile(rf"\.(?:step_\d+|checkpoint-\d+)\.{RANDOM}\.old")  # checkpoints that were being deleted
OLD, TEMPORARY = "old checkpoint", "temporary"
LIVE_S = 3600.0  # a temporary file that changed since may have a writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Removable:
    """A file or folder of a run that may be removed."""

    run: Path
    path: Path
    why: str  # `OLD` or `TEMPORARY`
    size: int  # bytes


def removable(root: Path) -> list[Removable]:
    """Parts that may be removed from the runs in `root`; only reads.

    Reads every file of the checkpoints of finished runs, to know which of them are intact. Raises `ConfigError` without
    such a folder.
    """
    runs = [run for run in run_folders(root) if not is_linked(run, root)]
    return [item for run in runs for item in removable_of(run)]


def removable_of(run: Path) -> list[Removable]:
    """Parts of one run that may be removed; empty for one at work, and for one that cannot be read, which is logged."""
    try:
        status = status_of(run, read_manifest(run / MANIFEST))
        return [] if status is RunStatus.RUNNING else list(_of_idle(run, finished=status is RunStatus.FINISHED))
    except (ConfigError, OSError) as error:
        logger.warning("%s: nothing is removed: %s", run, error)
        return []


def remove(run: Path, listed: list[Removable]) -> list[Removable]:
    """Remove the `listed` that may still be removed, under the run's lock, and return them.

    Raises `ConfigError` if the run has begun to work meanwhile. What cannot be removed is logged.
    """
    lock = RunLock(run / LOCK)
    lock.acquire()
    try:
        finished = ended(read_manifest(run / MANIFEST)) is RunStatus.FINISHED
        now = {item.path for item in _of_idle(run, finished=finished)}
        return [item for item in listed if item.path in now and _removed(item.path)]
    finally:
        lock.release()


def _removed(path: Path) -> bool:
    try:
        if not path.is_dir():
            path.unlink()
        elif path.name.startswith("."):
            shutil.rmtree(path)
        else:
            remove_folder(path)
    except OSError as error:
        logger.warning("not removed: %s", error)
        return False
    return True


def _of_idle(run: Path, *, finished: bool) -> Iterator[Removable]:
    before = time.time() - LIVE_S
    for file in torn_files(run):
        if file.lstat().st_mtime < before:
            yield Removable(run=run, path=file, why=TEMPORARY, size=file.lstat().st_size)
    folder = run / CHECKPOINTS
    has_checkpoints = folder.is_dir() and not folder.is_symlink()
    for parent, names in ((run, (MODELS,)), *([(folder, (LEFTOVER, DELETED))] if has_checkpoints else [])):
        for path in sorted(parent.iterdir()):
            is_temporary = path.is_dir() and not path.is_symlink() and any(name.fullmatch(path.name) for name in names)
            if is_temporary and all(inner.lstat().st_mtime < before for inner in (path, *path.rglob("*"))):
                yield Removable(run=run, path=path, why=TEMPORARY, size=folder_bytes(path))
    if finished and has_checkpoints:
        try:
            old = _old(folder)
        except ImportError as error:
            logger.warning("%s: its checkpoints stay, since they cannot be verified: %s", run, error)
            return
        yield from (Removable(run=run, path=folder / entry.name, why=OLD, size=entry.size) for entry in old)


def _old(folder: Path) -> list[CheckpointEntry]:
    """Intact checkpoints before the newest intact one, without the best."""
    entries = [entry for entry in list_checkpoints(folder) if not (folder / entry.name).is_symlink()]
    best = {entry.name for entry in entries if entry.best}
    if not entries:
        entries = [entry for entry in list_sft_checkpoints(folder) if not (folder / entry.name).is_symlink()]
        best = {chosen_checkpoint(folder).name} if any(entry.verified for entry in entries) else set()
    newest = next((entry for entry in entries if entry.resume), None)
    if newest is None:
        return []
    return [entry for entry in entries if entry.verified and entry.step < newest.step and entry.name not in best]
