from __future__ import annotations

import errno
import io
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from ramet.errors import ConfigError
from ramet.tracking.console import ConsoleTracker
from ramet.tracking.metrics import JsonlTracker, Trackers, check_trackers, make_trackers, read_metrics
from ramet.types import TrackedRun

METRICS = {"reward/mean": 0.5, "rollout/masked_share": 0.25, "train/entropy": 0.1, "time/step_s": 95.0}


class Failing:
    """A tracker whose service is down."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        raise ConnectionError("no route to host")

    def rewind(self, step: int) -> None:
        raise ConnectionError("no route to host")

    def close(self) -> None:
        pass


def lines_of(tracker: ConsoleTracker) -> list[str]:
    file = tracker.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


def console(*, terminal: bool, total_steps: int = 10) -> ConsoleTracker:
    output = Console(file=io.StringIO(), force_terminal=terminal, width=200, no_color=True, color_system=None)
    return ConsoleTracker(total_steps, output)


def test_an_unknown_tracker_is_named_with_those_that_are_allowed(tmp_path: Path) -> None:
    assert check_trackers(["console", "jsonl"]) == []
    with pytest.raises(ConfigError, match=r"^trackers: no tracker 'wandbb'\. Trackers: console, jsonl$"):
        make_trackers(["console", "wandbb"], TrackedRun(folder=tmp_path, total_steps=1))
    assert list(tmp_path.iterdir()) == []


def test_the_metrics_file_is_written_whatever_trackers_are_chosen(tmp_path: Path) -> None:
    trackers = make_trackers([], TrackedRun(folder=tmp_path, total_steps=1))
    trackers.log(1, METRICS)
    trackers.close()
    assert [entry.metrics for entry in read_metrics(tmp_path / "metrics.jsonl")] == [METRICS]


def test_a_failing_tracker_is_reported_once_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trackers = Trackers({"broken": Failing(), "jsonl": JsonlTracker(tmp_path / "metrics.jsonl")})
    with caplog.at_level(logging.WARNING):
        for step in range(1, 6):
            trackers.log(step, METRICS)
    assert len(caplog.records) == 1 and "no route to host" in caplog.text
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 5
    trackers.close()
    assert "failed 5 times" in caplog.text


def test_a_full_disk_loses_whole_lines_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metrics.jsonl"
    trackers = Trackers({"jsonl": JsonlTracker(path)})
    trackers.log(1, METRICS)
    real_open = Path.open

    def full(self: Path, *args: object, **kwargs: object) -> object:
        return _HalfWriter(real_open(self, "ab", buffering=0))  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        trackers.log(2, METRICS)
    trackers.log(3, METRICS)
    assert trackers.failures == {"jsonl": 1}
    assert [entry.step for entry in read_metrics(path)] == [1, 3]
    assert path.read_bytes().count(b"\n") == 2


class _HalfWriter:
    """Writes half of what it is given, then says that the disk is full."""

    def __init__(self, file: io.FileIO) -> None:
        self.file = file
        self.tell, self.truncate = file.tell, file.truncate

    def __enter__(self) -> _HalfWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def write(self, data: bytes) -> int:
        self.file.write(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "no space left on device")


def test_without_a_terminal_a_step_is_one_plain_line() -> None:
    tracker = console(terminal=False)
    tracker.log(1, METRICS)
    (line,) = lines_of(tracker)
    assert line == "step 1/10  reward 0.500  masked 25%  entropy 0.100  time 1m35"


def test_the_time_that_is_left_follows_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("ramet.tracking.console.time.monotonic", lambda: now[0])
    tracker = console(terminal=False)
    for step in (4, 5, 6):
        tracker.log(step, METRICS)
        now[0] += 10.0
    assert [line.rpartition("  ")[2] for line in lines_of(tracker)] == ["time 1m35", "left 50.0s", "left 40.0s"]


def test_on_a_terminal_rows_stand_under_their_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    tracker = console(terminal=True)
    for step in range(1, 4):
        tracker.log(step, METRICS)
    head, *rows = lines_of(tracker)
    assert len(rows) == 3
    for title, cell in (("reward", "0.500"), ("masked", "25%"), ("entropy", "0.100"), ("KL", "-")):
        end = head.index(title) + len(title)
        assert all(row[:end].endswith(cell) for row in rows)


def test_a_terminal_that_knows_no_unicode_gets_a_plain_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(Console, "encoding", "iso-8859-1")
    tracker = console(terminal=True)
    tracker.log(5, METRICS)
    text = "\n".join(lines_of(tracker))
    assert text.encode("latin-1") and " 5/10 #####-----" in text


def test_on_a_narrow_terminal_a_row_fits_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    tracker = ConsoleTracker(60, Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None))
    tracker.log(1, METRICS)
    assert max(len(line) for line in lines_of(tracker)) <= 80


def test_in_ci_a_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    tracker = console(terminal=True)
    tracker.log(1, METRICS)
    assert lines_of(tracker)[0].startswith("step 1/10  reward 0.500")


def test_validation_stands_on_a_line_of_its_own() -> None:
    tracker = console(terminal=False)
    tracker.log(5, {**METRICS, "valid/reward": 0.75})
    tracker.log(0, {"valid/reward": 0.25})
    assert lines_of(tracker)[1:] == ["step 5/10  valid/reward 0.750", "step 0/10  valid/reward 0.250"]


def test_a_fresh_run_is_not_announced_as_resumed() -> None:
    tracker = console(terminal=False)
    tracker.rewind(0)
    tracker.rewind(4)
    assert lines_of(tracker) == ["resumed after step 4"]
