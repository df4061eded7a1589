from __future__ import annotations

import io
import sys
import time

import pytest

from ramet.tracking.live import PERIOD_S, Part, line_of, live_line

PARTS = [Part("step 5/30"), Part("rollouts 37/128", rank=1), Part("9 in tools", rank=3), Part("left 12m30", rank=2)]


def test_a_wide_terminal_shows_all_parts_in_their_order() -> None:
    assert line_of(PARTS, 80) == "step 5/30  rollouts 37/128  9 in tools  left 12m30"


def test_a_narrow_terminal_drops_parts_by_rank() -> None:
    assert line_of(PARTS, 40) == "step 5/30  rollouts 37/128  left 12m30"
    assert line_of(PARTS, 30) == "step 5/30  rollouts 37/128"
    assert line_of(PARTS, 6) == "step"


def test_parts_without_text_leave_no_gap() -> None:
    assert line_of([Part("a"), Part(""), Part("b")], 80) == "a  b"


def test_wide_characters_and_control_characters_do_not_break_the_line() -> None:
    assert line_of([Part("数学" * 20)], 10) == "数学数学"
    assert line_of([Part("a\x1b[2J\nb")], 40) == r"a\x1b[2J b"


def test_without_a_terminal_nothing_is_asked_and_nothing_written(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    asked: list[bool] = []
    with live_line(lambda: asked.append(True) or []):
        assert sys.stdout is out
        time.sleep(2 * PERIOD_S)
    assert not asked and out.getvalue() == ""
