"""Checkpoints that survive a kill at any moment: a folder is complete, and verified by its manifest, or absent.

Writing: `.tmp_step_…/` in the same file system, every file fsynced, `MANIFEST.json` with sizes and hashes last, then
the rename to `step_000012/`; only then are old ones pruned, which renames each before it is deleted. Reading: newest
first, hashes compared; a damaged one is skipped with a warning that names file and reason. No pointer file could be out
of date. The manifest says which rank wrote a file, so that ranks share the hashing of a checkpoint of many gigabytes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ramet.errors import InfraError
from ramet.io.atomic import finish_removals, remove_folder, sync, sync_tree, write_file
from ramet.io.os_errors import os_error_text
from ramet.policy.errors import CheckpointError, CheckpointNotWritten

logger = logging.getLogger(__name__)
MANIFEST = "MANIFEST.json"
SCORE = "SCORE.json"
HASHES = ".hashes_"  # and a rank: until the manifest is written
NAME = re.compile(r"step_(\d{6,})")
LEFTOVER = re.compile(r"\.tmp_step_(\d{6,})_\d+")  # of a save that was killed
_NO_MANIFEST = (OSError, ValueError, KeyError, TypeError, AttributeError)
HASHERS = 8  # threads: a checkpoint of 91 GB takes one of them a minute and more
SPARE = 1.2  # free space wanted, as a multiple of the last checkpoint
Key = TypeVar("Key")
Verify = Callable[[Path], list[str]]  # the problems of a checkpoint, as of `verify`
FileTimes = frozenset[tuple[str, int, int]]  # path, size and time of the last change in ns of every file of a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointScore:
    """The result of a validation of a checkpoint, in its folder's `SCORE.json`; by it `train.keep_best` keeps the best.

    Higher is better; ties go to the earlier checkpoint. Each checkpoint has only its own score, so a resumed run
    compares the same numbers as one that was never stopped. A run that validates after its checkpoint was written, or
    by another metric, writes the file later, so the checkpoint's manifest never lists it.
    """

    metric: str
    value: float  # finite

    def write(self, folder: Path) -> None:
        write_file(folder / SCORE, json.dumps(asdict(self)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A verified folder and the number of steps that were done when it was written."""

    step: int
    folder: Path


class Checkpoints:
    """The checkpoints of one run in one folder. Only one process may write there (the run directory's lock)."""

    def __init__(
        self, root: Path, *, keep: int, keep_best: str | None = None, verify_with: Verify | None = None
    ) -> None:
        """`keep_best`: the checkpoint with the best score in this metric is kept in addition to the newest `keep`.
        `verify_with`: what reads a checkpoint in place of this process (`cluster.interfaces.Ranks.verify`).
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        self.root = root
        self.keep = keep
        self.keep_best = keep_best
        self._verify = verify_with or verify
        self._whole: dict[Path, FileTimes] = {}  # verified or written by this object; hashing them again takes minutes

    def save(self, step: int, write: Callable[[Path], None]) -> Checkpoint:
        """Let `write` fill a temporary folder, make it `step_…`, and prune to the newest `keep`. In any thread.

        If several ranks write, `write` returns when all have; one process writes the manifest and renames.
        Raises `CheckpointNotWritten` if it cannot be; the checkpoints before it are then as they were.
        """
        final = self.root / f"step_{step:06d}"
        temporary = self.root / f".tmp_step_{step:06d}_{os.getpid()}"
        try:
            self.root.mkdir(exist_ok=True)
            self._free_name(final)
            self._check_space()
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            write(temporary)
            _seal(temporary)
            temporary.rename(final)
            sync(self.root)
        except BaseException as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError):
                text = f"{final}: not written: {os_error_text(error)}; older checkpoints are unchanged"
                raise CheckpointNotWritten(text) from error
            if isinstance(error, CheckpointError):
                raise CheckpointNotWritten(str(error)) from error
            raise
        saved = Checkpoint(step=step, folder=final)
        self._whole[final] = _file_times(final)
        self._prune(saved)
        return saved

    def best(self, up_to: int) -> tuple[Checkpoint, CheckpointScore] | None:
        """The best checkpoint by `keep_best` of those up to this step that verifies; None if none has a score.

        Reads all of a checkpoint unless this object has done so, or has written it, and no file has changed since.
        """
        if self.keep_best is None:
            return None
        checkpoints = [checkpoint for checkpoint in reversed(_newest_first(self.root)) if checkpoint.step <= up_to]
        scores = [(checkpoint, read_score(checkpoint.folder)) for checkpoint in checkpoints]
        while (best := best_of(scores, self.keep_best)) is not None and not self._is_whole(best[0]):
            scores = [pair for pair in scores if pair[0] != best[0]]
        return best

    def score(self, step: int) -> CheckpointScore | None:
        """The score of `keep_best` for the checkpoint of this step."""
        score = read_score(self.root / f"step_{step:06d}")
        return score if score is not None and score.metric == self.keep_best else None

    def add_score(self, step: int, score: CheckpointScore) -> None:
        """Add the score of a checkpoint that was validated after it was written."""
        score.write(self.root / f"step_{step:06d}")

    def _free_name(self, final: Path) -> None:
        """Delete a damaged checkpoint of this name, never replace an intact one, rename any other folder."""
        if not os.path.lexists(final):
            return
        if _is_ours(final):
            if not self._verify(final):
                raise CheckpointError(
                    f"{final}: there is an intact checkpoint of this step already; it is not replaced"
                )
            remove_folder(final)
            return
        suffixes = itertools.chain([""], (f"_{n}" for n in itertools.count(1)))
        paths = (final.with_name(f"other_{final.name}{suffix}") for suffix in suffixes)
        aside = next(path for path in paths if not os.path.lexists(path))
        logger.warning("%s: no checkpoint of Ramet's; renamed to %s", final, aside.name)
        final.rename(aside)

    def _check_space(self) -> None:
        last = _newest_first(self.root)[:1]
        needed = int(SPARE * sum(_size(checkpoint.folder) for checkpoint in last))
        free = shutil.disk_usage(self.root).free
        if free < needed:
            fewer = f" or lower train.keep_checkpoints={self.keep}" if self.keep > 1 else ""
            raise CheckpointError(
                f"{self.root}: {free} bytes free, a checkpoint needs about {needed} ({SPARE} x the last one); free "
                f"some space{fewer}"
            )

    def _prune(self, saved: Checkpoint) -> None:
        """Keep the newest up to the one just saved, which is intact, and the best. Newer ones, once skipped, stay, and
        so do other folders.
        """
        ours = (checkpoint for checkpoint in _newest_first(self.root) if _is_ours(checkpoint.folder))
        older = [checkpoint for checkpoint in ours if checkpoint.step <= saved.step]
        try:
            best = self.best(saved.step)
        except InfraError as error:  # a rank that reads it is lost; the new one is saved
            logger.warning("old checkpoints not deleted: %s", error)
            return
        for checkpoint in older[self.keep :]:
            if best is None or checkpoint != best[0]:
                try:
                    remove_folder(checkpoint.folder)
                except OSError as error:  # the new one is saved; this one is tried again after the next save
                    logger.warning("old checkpoint not deleted: %s", os_error_text(error))

    def newest(self) -> Checkpoint | None:
        """The newest folder that verifies, or None. Deletes leftovers of killed processes."""
        for stale in (path for path in self.root.glob(".tmp_step_*") if LEFTOVER.fullmatch(path.name)):
            if stale.is_symlink() or not stale.is_dir():
                continue
            logger.warning("%s: left by an interrupted save, deleted", stale)
            shutil.rmtree(stale, ignore_errors=True)
        for removed in finish_removals(self.root, NAME):
            logger.info("%s: left by an interrupted deletion, deleted", removed)
        return next((checkpoint for checkpoint in _newest_first(self.root) if self._verified(checkpoint)), None)

    def _is_whole(self, checkpoint: Checkpoint) -> bool:
        file_times = self._whole.get(checkpoint.folder)
        return (file_times is not None and file_times == _file_times(checkpoint.folder)) or self._verified(checkpoint)

    def _verified(self, checkpoint: Checkpoint) -> bool:
        times, problems = _file_times(checkpoint.folder), self._verify(checkpoint.folder)
        if problems:
            logger.warning("checkpoint %s skipped: %s", checkpoint.folder.name, "; ".join(problems))
        else:
            self._whole[checkpoint.folder] = times
        return not problems


def score_of(metrics: Mapping[str, float], metric: str) -> CheckpointScore | None:
    """Return the score; None if the metric is missing or not a finite number: the checkpoint is never the best."""
    value = metrics.get(metric)
    return None if value is None or not math.isfinite(value) else CheckpointScore(metric=metric, value=value)


def read_score(folder: Path) -> CheckpointScore | None:
    """Read the score of a checkpoint; None without one that can be read."""
    try:
        body = json.loads((folder / SCORE).read_text(encoding="ascii"))
        return score_of({str(body["metric"]): float(body["value"])}, str(body["metric"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def best_of(scores: Iterable[tuple[Key, CheckpointScore | None]], metric: str) -> tuple[Key, CheckpointScore] | None:
    """The best of these, in order of their steps; scores in other metrics do not count."""
    comparable = [(key, score) for key, score in scores if score is not None and score.metric == metric]
    return max(comparable, key=lambda pair: pair[1].value, default=None)  # the first of equal ones


@dataclass(frozen=True, slots=True, kw_only=True)
class _ManifestFile:
    """A file in a manifest."""

    size: int
    sha256: str
    rank: int | None  # that wrote it; None: the driver did, or a version of Ramet that did not note it

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> _ManifestFile:
        """Raises `_NO_MANIFEST`."""
        rank = noted.get("rank")
        return cls(size=int(noted["size"]), sha256=str(noted["sha256"]), rank=None if rank is None else int(rank))


def verify(folder: Path) -> list[str]:
    """Problems of a checkpoint, one line per file; empty if it is intact."""
    return _problems(folder, lambda files: list(files))


def verify_part(folder: Path, rank: int | None, world_size: int) -> list[str]:
    """The same for the files that `rank`, one of `world_size`, reads; None: for those that no rank wrote.

    Every file is in one part. Ranks that write a file and read it are neighbours, also if they are fewer or more now.
    """

    def own(files: Mapping[str, _ManifestFile]) -> list[str]:
        writers = sorted({entry.rank for entry in files.values() if entry.rank is not None})
        readers = {writer: i * world_size // len(writers) for i, writer in enumerate(writers)}
        return [name for name, entry in files.items() if (None if entry.rank is None else readers[entry.rank]) == rank]

    return _problems(folder, own)


def _problems(folder: Path, choose: Callable[[Mapping[str, _ManifestFile]], Collection[str]]) -> list[str]:
    try:
        expected = _read_manifest(folder)
    except _NO_MANIFEST as error:
        return [f"{folder / MANIFEST}: not a manifest: {error!r}"]
    chosen = choose(expected)
    with ThreadPoolExecutor(HASHERS) as pool:  # SHA-256 lets other threads run
        problems = pool.map(lambda name: _compare(folder / name, expected[name]), chosen)
        return [f"{folder / name}: {problem}" for name, problem in zip(chosen, problems, strict=True) if problem]


def _read_manifest(folder: Path) -> dict[str, _ManifestFile]:
    """The files by name. Raises `_NO_MANIFEST`."""
    entries = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    return {str(name): _ManifestFile.of(entry) for name, entry in entries.items()}


def _is_ours(folder: Path) -> bool:
    """Whether Ramet wrote this folder, intact or not: its manifest says so."""
    try:
        return folder.is_dir() and not folder.is_symlink() and bool(_read_manifest(folder))
    except _NO_MANIFEST:
        return False


def _compare(path: Path, expected: _ManifestFile) -> str | None:
    try:
        if not path.is_file():
            return "missing"
        if path.stat().st_size != expected.size:
            return f"{path.stat().st_size} bytes, the manifest says {expected.size}"
        return None if _sha256(path) == expected.sha256 else "its content does not match the manifest's hash"
    except OSError as error:
        return f"cannot be read: {error}"


def _file_times(folder: Path) -> FileTimes:
    """Return the times of the files without the score, which is written later."""
    files = (path for path in folder.rglob("*") if path.is_file() and path != folder / SCORE)
    return frozenset((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def _newest_first(root: Path) -> list[Checkpoint]:
    folders = [(NAME.fullmatch(path.name), path) for path in root.glob("step_*") if path.is_dir()]
    checkpoints = [Checkpoint(step=int(match[1]), folder=path) for match, path in folders if match]
    return sorted(checkpoints, key=lambda checkpoint: -checkpoint.step)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def note_hashes(folder: Path, rank: int, names: Iterable[str]) -> None:
    """Write the hashes of a rank's files in `folder` for `Checkpoints.save`, so that ranks hash in parallel, and each
    only its own files.
    """
    hashes = {name: _hashed(folder / name) | {"rank": rank} for name in names}
    write_file(folder / f"{HASHES}{rank:05d}", json.dumps(hashes))


def _take_hashes(folder: Path) -> dict[Path, dict[str, int | str]]:
    """The hashes that ranks have written in `folder` or below; deletes their files."""
    hashes: dict[Path, dict[str, int | str]] = {}
    for file in folder.rglob(f"{HASHES}*"):
        hashes |= {file.parent / name: entry for name, entry in json.loads(file.read_text()).items()}
        file.unlink()
    return hashes


def _seal(folder: Path) -> None:
    """Make all files and folders durable, then write the manifest.

    The score is not listed: a later validation may replace it, and the checkpoint is complete without it.
    """
    noted = _take_hashes(folder)
    sync_tree(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    entries = {
        file.relative_to(folder).as_posix(): noted.get(file) or _hashed(file)
        for file in files
        if file != folder / SCORE
    }
    write_file(folder / MANIFEST, json.dumps({"files": entries}, indent=1) + "\n")


def _hashed(path: Path) -> dict[str, int | str]:
    return {"size": path.stat().st_size, "sha256": _sha256(path)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
