"""The console tracker: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ramet.tracking.console import ConsoleTracker

METRICS = {"reward/mean": 0.5, "rollout/masked_share": 0.25, "train/entropy": 0.1, "time/step_s": 95.0}


def lines_of(tracker: ConsoleTracker) -> list[str]:
    file = tracker.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().splitlines()


def console(*, terminal: bool, total_steps: int = 10) -> ConsoleTracker:
    output = Console(file=io.StringIO(), force_terminal=terminal, width=200, no_color=True, color_system=None)
    return ConsoleTracker(total_steps, output)


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


def test_on_a_terminal_rows_are_under_their_headings(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_validation_has_a_line_of_its_own() -> None:
    tracker = console(terminal=False)
    tracker.log(5, {**METRICS, "valid/reward": 0.75})
    tracker.log(0, {"valid/reward": 0.25})
    assert lines_of(tracker)[1:] == ["step 5/10  valid/reward 0.750", "step 0/10  valid/reward 0.250"]


def test_a_fresh_run_is_not_announced_as_resumed() -> None:
    tracker = console(terminal=False)
    tracker.rewind(0)
    tracker.rewind(4)
    assert lines_of(tracker) == ["resumed after step 4"]
