from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest

from ramet.tracking.jsonl import JsonlTracker, curves_of, read_metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "metrics.jsonl"


def test_every_call_is_one_json_line_with_step_time_and_metrics(path: Path) -> None:
    tracker = JsonlTracker(path)
    tracker.log(1, {"reward/mean": 0.5})
    tracker.log(2, {"reward/mean": 0.75, "train/tokens": 7})
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [sorted(line) for line in lines] == [
        ["reward/mean", "step", "time"],
        ["reward/mean", "step", "time", "train/tokens"],
    ]
    assert (lines[1]["step"], lines[1]["reward/mean"], lines[1]["train/tokens"]) == (2, 0.75, 7)


def test_numbers_that_json_lacks_come_back_as_they_were(path: Path) -> None:
    JsonlTracker(path).log(1, {"a": math.nan, "b": math.inf, "c": -math.inf})
    assert all(isinstance(value, int | float | str) for value in json.loads(path.read_text()).values())
    (entry,) = read_metrics(path)
    assert math.isnan(entry.metrics["a"])
    assert (entry.metrics["b"], entry.metrics["c"]) == (math.inf, -math.inf)


def test_a_torn_last_line_is_skipped_and_reported(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    JsonlTracker(path).log(1, {"a": 1.0})
    with path.open("ab") as file:
        file.write(b'{"step": 2, "time": 1.0, "a"')
    with caplog.at_level(logging.WARNING):
        entries = read_metrics(path)
    assert [entry.step for entry in entries] == [1]
    assert "line 2" in caplog.text and str(path) in caplog.text


def test_a_resumed_tracker_never_writes_after_a_torn_line(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    JsonlTracker(path).log(1, {"a": 1.0})
    with path.open("ab") as file:
        file.write(b'{"step": 2, "ti')
    JsonlTracker(path).log(2, {"a": 2.0})
    assert "torn" in caplog.text
    assert [(entry.step, entry.metrics["a"]) for entry in read_metrics(path)] == [(1, 1.0), (2, 2.0)]


@pytest.mark.parametrize("line", ["[]", "null", '"x"', '{"step": 1}', '{"step": 1, "time": 0, "a": {}}', "\x00\x00"])
def test_a_line_of_another_shape_is_skipped(path: Path, line: str) -> None:
    JsonlTracker(path).log(1, {"a": 1.0})
    with path.open("a") as file:
        file.write(line + "\n")
    JsonlTracker(path).log(2, {"a": 2.0})
    assert [entry.step for entry in read_metrics(path)] == [1, 2]


def test_rewinding_drops_later_steps_and_keeps_the_rest_byte_for_byte(path: Path) -> None:
    tracker = JsonlTracker(path)
    for step in (1, 2, 2, 3, 4):
        tracker.log(step, {"a": step / 3, "b": math.nan})
    before = path.read_bytes().splitlines()
    tracker.rewind(2)
    assert path.read_bytes().splitlines() == before[:3]
    tracker.log(3, {"a": 9.0})
    assert [entry.step for entry in read_metrics(path)] == [1, 2, 2, 3]
    assert [file.name for file in path.parent.iterdir()] == ["metrics.jsonl"]


def test_rewinding_a_file_that_does_not_exist_leaves_none(path: Path) -> None:
    JsonlTracker(path).rewind(0)
    assert not path.exists()
    assert read_metrics(path) == []


def test_curves_are_sorted_by_step_and_the_last_value_of_a_step_counts(path: Path) -> None:
    tracker = JsonlTracker(path)
    for step, value in ((2, 0.2), (1, 0.1), (2, 0.3)):
        tracker.log(step, {"a": value})
    tracker.log(3, {"b": 1.0})
    assert curves_of(read_metrics(path)) == {"a": ([1.0, 2.0], [0.1, 0.3]), "b": ([3.0], [1.0])}
