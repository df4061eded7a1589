"""The console tracker: a table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ramet.tracking.console import ConsoleTracker

METRICS = {"reward/roots_mean": 0.5, "rollout/masked_share": 0.25, "train/entropy": 0.1, "time/step_s": 95.0}


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


FULL = {
    **METRICS,
    "rollout/forks_per_group": 2.5,
    "rollout/sampled_tokens_mean": 143.2,
    "rollout/stop/length": 0.125,
    "rollout/tool_use": 1.0,
    "rollout/executed_sampled_tokens": 30_000.0,
    "rollout/seconds": 2.0,
    "source/math/reward": 0.75,
    "source/qa/reward": 0.25,
}


@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_a_row_fits_one_line_of_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    tracker = ConsoleTracker(1000, Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None))
    tracker.log(1, FULL)
    tracker.log(1000, FULL)
    assert max(len(line) for line in lines_of(tracker)) <= width


def test_a_narrow_terminal_keeps_reward_length_time_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    tracker = ConsoleTracker(60, Console(file=io.StringIO(), force_terminal=True, width=40, color_system=None))
    tracker.log(1, FULL)
    assert lines_of(tracker) == ["step    reward  length    time    left", " 1/60    0.500     143    1m35       -"]


def test_a_terminal_of_120_columns_shows_forks_sources_length_and_what_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    tracker = ConsoleTracker(60, Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None))
    tracker.log(1, FULL)
    head, row = (line.split() for line in lines_of(tracker))
    assert head == "step reward math qa tool use forks length cut masked tok/s KL entropy time left".split()
    assert row == "1/60 0.500 0.750 0.250 100% 2.5 143 12% 25% 15.0k - 0.100 1m35 -".split()


def test_a_data_source_that_appears_later_gets_a_new_header(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    tracker = console(terminal=True)
    tracker.log(1, {**METRICS, "source/math/reward": 0.5})
    tracker.log(2, {**METRICS, "source/qa/reward": 0.5})
    tracker.log(3, {**METRICS, "source/math/reward": 0.5})
    assert [line.split()[0] for line in lines_of(tracker)] == ["step", "1/10", "step", "2/10", "3/10"]


def test_sft_has_the_same_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    sft = {"sft/loss": 1.25, "sft/lr": 2e-5, "sft/epoch": 0.5, "sft/grad_norm": 3.0, "sft/steps_per_s": 4.0}
    sft["sft/tokens_per_s"] = 12345.6
    table, plain = console(terminal=True), console(terminal=False)
    for tracker in (table, plain):
        tracker.log(5, sft)
    head, row = (line.split() for line in lines_of(table))
    assert head == ["step", "loss", "epoch", "lr", "grad", "norm", "steps/s", "tokens/s", "left"]
    assert row == ["5/10", "━━━━━╌╌╌╌╌", "1.250", "0.50", "2.0e-05", "3.000", "4.00", "12,346", "-"]
    assert lines_of(plain) == [
        "step 5/10  loss 1.250  epoch 0.50  lr 2.0e-05  grad norm 3.000  steps/s 4.00  tokens/s 12,346"
    ]


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


def test_a_resume_is_announced_by_whoever_resumes() -> None:
    tracker = console(terminal=False)
    tracker.rewind(0)
    tracker.rewind(4)
    assert lines_of(tracker) == []
