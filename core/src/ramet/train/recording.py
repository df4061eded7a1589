"""The rollouts that a training run keeps: one file for each step, and one for each validation."""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence
from pathlib import Path

from ramet.policy.batching.train_batch import TrainBatch
from ramet.rollout.record import INDEX, GroupRecord, write_records
from ramet.rollout.record_files import FOLDER, remove_parts
from ramet.train.step_rollouts import PlayedStep


def record_path(folder: Path, step: int) -> Path:
    """The record of a training step of the run in `folder`: the folder of parts, if it is there, or the file."""
    parts = parts_path(folder, step)
    return parts if (parts / INDEX).is_file() else parts.with_name(f"{parts.name}.jsonl.gz")


def parts_path(folder: Path, step: int) -> Path:
    """The record of a training step in parts."""
    return folder / FOLDER / f"step_{step:06d}"


def record_step(
    folder: Path,
    step: int,
    played: PlayedStep,
    batch: TrainBatch | None = None,
    *,
    greedy: Sequence[float | None] | None = None,
) -> None:
    """Write `step_records` to the run's `rollouts/`. Raises `OSError` if the run's directory was deleted."""
    records = step_records(step, played, batch, greedy=greedy)
    check_folder(folder)
    remove_parts(parts_path(folder, step))
    write_records(record_path(folder, step), records)


def step_records(
    step: int,
    played: PlayedStep,
    batch: TrainBatch | None = None,
    *,
    greedy: Sequence[float | None] | None = None,
) -> list[GroupRecord]:
    """Return every group of a step; the groups of `batch` come first, with advantages.

    `greedy`: rewards of greedy rollouts, of as many of the groups as there are.
    """
    by_group: dict[int, dict[str, array[float]]] = {}
    if batch is not None:
        for row, values in zip(batch.rows, batch.advantages, strict=True):
            by_group.setdefault(row.group, {})[row.rollout_id] = array("f", values.tobytes())
    return [
        GroupRecord(
            step=step,
            group=group,
            advantages=by_group.get(i, {}),
            number=played.numbers[i] if played.numbers else None,
            greedy=tuple(greedy or ())[i : i + 1],
        )
        for i, group in enumerate(played.all)
    ]


def record_validation(folder: Path, step: int, records: Sequence[GroupRecord]) -> None:
    """Write the groups of a validation of the weights after this step. Raises as `record_step`."""
    check_folder(folder)
    write_records(folder / FOLDER / f"valid_{step:06d}.jsonl.gz", records)


def check_folder(folder: Path) -> None:
    """Raise `OSError` if the run's directory was deleted: half a directory that is made again could not be resumed."""
    if not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
