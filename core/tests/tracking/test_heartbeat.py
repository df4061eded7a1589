"""A job that is busy for long says what it does, and one that speaks says nothing more."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from ramet.tracking import heartbeat as module
from ramet.tracking.heartbeat import doing, heartbeat, spoke

logger = logging.getLogger("ramet.test")


def until(holds: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not holds() and time.monotonic() < ends:
        time.sleep(0.01)
    assert holds()


def test_what_is_being_done_is_logged_while_nothing_else_is(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), heartbeat(quiet_s=0.05, tick_s=0.01):
        doing("reading rows")
        until(lambda: any(message.startswith("reading rows (") for message in caplog.messages))
        doing(lambda: "step 3/9")
        until(lambda: any(message.startswith("step 3/9 (") for message in caplog.messages))
    caplog.clear()
    doing("after the block")
    time.sleep(0.3)
    assert caplog.messages == []


def test_a_job_that_speaks_adds_no_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with caplog.at_level(logging.INFO), heartbeat(quiet_s=30, tick_s=1000):
        [beating] = module._active
        doing("training")
        for say in (lambda: logger.info("step"), spoke, beating.beat):
            now[0] += 29
            say()
            beating.beat()
        assert caplog.messages == ["step"]
        now[0] += 1
        beating.beat()
        beating.beat()
        assert caplog.messages == ["step", "training (88 s)"]
        doing("")
        now[0] += 100
        beating.beat()
        assert len(caplog.messages) == 2
