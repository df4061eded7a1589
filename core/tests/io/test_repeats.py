from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from ramet.io import repeats
from ramet.tracking.log import ConsoleHandler

logger = logging.getLogger("ramet.test.repeats")


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What the console shows."""
    repeats.forget()
    handler = ConsoleHandler()
    logger.addHandler(handler)
    yield lambda: capsys.readouterr().err
    logger.removeHandler(handler)
    repeats.forget()


def test_a_warning_is_shown_once_then_every_tenth_time_and_summed_up(console: Callable[[], str]) -> None:
    for step in range(1, 13):
        repeats.warn(logger, "rewards are equal", "step %d: all are equal", step, by_step=True)
    repeats.report(logger, steps=20)
    assert console().splitlines() == [
        "step 1: all are equal",
        "step 10: all are equal (seen 10 times so far)",
        "rewards are equal: seen in 12 of 20 steps",
    ]


def test_kinds_are_counted_apart_and_what_came_once_needs_no_summary(console: Callable[[], str]) -> None:
    for who in ("a", "b", "b"):
        repeats.warn(logger, f"{who} failed", "%s failed", who)
    repeats.report(logger, steps=20)
    repeats.report(logger, steps=20)
    assert console().splitlines() == ["a failed", "b failed", "b failed: seen 2 times"]


def test_every_one_of_them_is_a_record_of_its_caller(
    console: Callable[[], str], caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        repeats.warn(logger, "kind", "number %d", number)
    assert [(record.getMessage(), record.filename) for record in caplog.records] == [
        (f"number {number}", "test_repeats.py") for number in range(3)
    ]


def test_other_warnings_are_shown_as_they_come(console: Callable[[], str]) -> None:
    for _ in range(2):
        logger.warning("disk is full")
    assert console() == "disk is full\ndisk is full\n"
