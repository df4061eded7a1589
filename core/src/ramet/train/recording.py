"""The rollouts that a training run keeps: one file for each step, and one for each validation."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence
from pathlib import Path

from ramet.policy.batching.train_batch import TrainBatch
from ramet.rollout.record import GroupRecord, write_records
from ramet.train.step_rollouts import PlayedStep

FOLDER = "rollouts"


def record_path(folder: Path, step: int) -> Path:
    """The record of a training step of the run in `folder`."""
    return folder / FOLDER / f"step_{step:06d}.jsonl.gz"


def record_step(
    folder: Path,
    step: int,
    played: PlayedStep,
    batch: TrainBatch | None = None,
    *,
    greedy: Sequence[float | None] | None = None,
) -> None:
    """Write every group to the run's `rollouts/`; the groups of `batch` come first, with advantages.

    `greedy`: rewards of greedy rollouts, of as many of the groups as there are. Raises `OSError` if the run's directory
    was deleted.
    """
    by_group: dict[int, dict[str, array[float]]] = {}
    if batch is not None:
        for row, values in zip(batch.rows, batch.advantages, strict=True):
            by_group.setdefault(row.group, {})[row.rollout_id] = array("f", values.tobytes())
    records = [
        GroupRecord(
            step=step,
            group=group,
            advantages=by_group.get(i, {}),
            number=played.numbers[i] if played.numbers else None,
            greedy=tuple(greedy or ())[i : i + 1],
        )
        for i, group in enumerate(played.all)
    ]
    _write(folder, record_path(folder, step), records)


def record_validation(folder: Path, step: int, records: Sequence[GroupRecord]) -> None:
    """Write the groups of a validation of the weights after this step. Raises as `record_step`."""
    _write(folder, folder / FOLDER / f"valid_{step:06d}.jsonl.gz", records)


def _write(folder: Path, path: Path, records: Sequence[GroupRecord]) -> None:
    if not folder.is_dir():  # half a directory that is made again could not be resumed
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    write_records(path, records)
