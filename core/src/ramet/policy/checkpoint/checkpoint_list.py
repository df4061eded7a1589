"""The list of a run's checkpoints, read and never changed: a run may be writing there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ramet.policy.checkpoint.store import LEFTOVER, NAME, CheckpointScore, best_of, read_score, verify


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointEntry:
    """A checkpoint, or what a killed save left."""

    name: str
    step: int  # steps that were done
    size: int  # bytes
    written: float  # seconds since the epoch
    leftover: bool
    problems: Sequence[str]  # of a checkpoint; empty if it verifies
    resume: bool = False  # a resume would take this one
    score: CheckpointScore | None = None  # of its validation
    best: bool = False  # train.keep_best keeps this one

    @property
    def verified(self) -> bool:
        return not self.leftover and not self.problems


def list_checkpoints(root: Path) -> list[CheckpointEntry]:
    """Oldest step first. Reads every file of every checkpoint, to compare its hash."""
    seen = [entry for path in root.iterdir() if path.is_dir() and (entry := _entry(path)) is not None]
    entries = sorted(seen, key=lambda entry: (entry.step, entry.leftover, entry.name))
    marked = mark_newest(entries)
    best = _best([entry for entry in marked if entry.verified])
    return [replace(entry, best=entry is best) for entry in marked]


def mark_newest(entries: Sequence[CheckpointEntry]) -> list[CheckpointEntry]:
    """The same, oldest first, with the one that a resume would take marked: the last that verifies."""
    newest = next((entry for entry in reversed(entries) if entry.verified), None)
    return [replace(entry, resume=entry is newest) for entry in entries]


def _best(entries: Sequence[CheckpointEntry]) -> CheckpointEntry | None:
    """Return the best entry by the metric of the newest score."""
    metric = next((entry.score.metric for entry in reversed(entries) if entry.score is not None), "")
    best = best_of(((entry, entry.score) for entry in entries), metric)
    return None if best is None else best[0]


def _entry(folder: Path) -> CheckpointEntry | None:
    """Return a folder's entry; None for another kind of folder, and for one that a running job deletes meanwhile."""
    named, leftover = NAME.fullmatch(folder.name), LEFTOVER.fullmatch(folder.name)
    match = named or leftover
    if match is None:
        return None
    problems = verify(folder) if named else []
    entry = measured(folder, step=int(match[1]), leftover=named is None, problems=problems)
    return None if entry is None else replace(entry, score=read_score(folder))


def measured(folder: Path, *, step: int, leftover: bool, problems: Sequence[str]) -> CheckpointEntry | None:
    """The entry of a folder, with its size and age; None for one that a running job deletes meanwhile."""
    try:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        written = folder.stat().st_mtime
    except FileNotFoundError:
        return None
    return CheckpointEntry(
        name=folder.name, step=step, size=size, written=written, leftover=leftover, problems=problems
    )
