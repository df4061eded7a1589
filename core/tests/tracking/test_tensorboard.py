"""The tracker `tensorboard`, read back with TensorBoard's own reader."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ramet.tracking.tensorboard import TensorboardTracker
from ramet.types import TrackedRun

pytest.importorskip("tensorboard", reason="needs ramet[tensorboard]")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Metric -> steps and values that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(folder / "tensorboard"))
    shown.Reload()
    return {tag: [(one.step, one.value) for one in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}


def tracked(folder: Path) -> TensorboardTracker:
    return TensorboardTracker(TrackedRun(folder=folder, total_steps=9))


def test_metrics_are_scalars_under_their_names(tmp_path: Path) -> None:
    tracker = tracked(tmp_path)
    tracker.rewind(-1)
    tracker.log(1, {"reward/mean": 0.5, "valid/x/pass@4": 0.25})
    tracker.log(1, {"valid/reward": math.nan})
    tracker.close()
    found = scalars(tmp_path)
    assert math.isnan(found.pop("valid/reward")[0][1])
    assert found == {"reward/mean": [(1, 0.5)], "valid/x/pass@4": [(1, 0.25)]}


def test_steps_that_a_resume_redoes_count_once_with_their_last_values(tmp_path: Path) -> None:
    first = tracked(tmp_path)
    first.rewind(-1)
    for step in (1, 2, 3):
        first.log(step, {"reward/mean": step / 8})
    first.close()
    second = tracked(tmp_path)
    second.rewind(1)
    for step in (2, 3, 4):
        second.log(step, {"reward/mean": step / 4})
    second.close()
    assert scalars(tmp_path) == {"reward/mean": [(1, 0.125), (2, 0.5), (3, 0.75), (4, 1.0)]}


def test_without_a_resume_nothing_is_cut(tmp_path: Path) -> None:
    for value in (0.5, 0.75):  # of an evaluation, which logs once
        tracker = tracked(tmp_path)
        tracker.log(0, {"eval/sums/accuracy": value})
        tracker.close()
    assert [step for step, _ in scalars(tmp_path)["eval/sums/accuracy"]] == [0, 0]


def test_one_that_is_never_used_leaves_no_file(tmp_path: Path) -> None:
    tracked(tmp_path).close()
    assert list(tmp_path.iterdir()) == []
