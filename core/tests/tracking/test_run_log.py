from __future__ import annotations

import errno
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from ramet.errors import ConfigErrors, InfraError
from ramet.io import repeats
from ramet.runs.stopped import Stopped
from ramet.tracking import run_log
from ramet.tracking.log import ConsoleHandler
from ramet.tracking.run_log import StepLog, recording

logger = logging.getLogger("ramet.test.run_log")
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")


def lines(path: Path) -> list[str]:
    """Without the times, which every record has."""
    found = path.read_text().splitlines()
    assert all(STAMP.match(line) or line.startswith("  ") for line in found)
    return [STAMP.sub("", line) for line in found]


def test_what_came_before_the_directory_is_in_the_log_too(tmp_path: Path) -> None:
    with recording() as log:
        logger.warning("before")
        log.write_to(tmp_path / "run.log")
        logger.warning("after\nin two lines")
    assert lines(tmp_path / "run.log") == ["WARNING before", "WARNING after", "  in two lines"]


def test_a_resumed_run_appends_and_a_torn_line_is_ended(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("2026-11-22 10:00:00 INFO    to")
    with recording() as log:
        log.write_to(tmp_path / "run.log")
        logger.warning("next")
    assert lines(tmp_path / "run.log") == ["INFO    to", "WARNING next"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InfraError("the disk is gone"), ["ERROR   InfraError: the disk is gone"]),
        (ConfigErrors(["a: wrong", "b: wrong"]), ["ERROR   a: wrong", "  b: wrong"]),
        (Stopped(15), ["WARNING stopped by SIGTERM"]),
    ],
)
def test_the_last_line_says_why_a_run_ended(tmp_path: Path, error: BaseException, expected: list[str]) -> None:
    with pytest.raises(type(error)), recording() as log:
        log.write_to(tmp_path / "run.log")
        raise error
    assert lines(tmp_path / "run.log") == expected


def test_every_warning_that_repeats_is_in_the_log_and_so_is_the_sum(tmp_path: Path) -> None:
    with recording() as log:
        log.write_to(tmp_path / "run.log")
        for step in range(1, 4):
            repeats.warn(logger, "rewards are equal", "step %d: equal", step)
    written = lines(tmp_path / "run.log")
    assert written[:3] == [f"WARNING step {step}: equal" for step in range(1, 4)]
    assert written[3:] == ["WARNING rewards are equal: seen 3 times"]


def test_steps_have_their_plain_line_and_the_console_does_not_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logging.getLogger().addHandler(console := ConsoleHandler())
    with recording() as log:
        log.write_to(tmp_path / "run.log")
        tracker = StepLog(10)
        tracker.log(3, {"reward/roots_mean": 0.5, "valid/reward": 0.25})
    assert lines(tmp_path / "run.log") == [
        "INFO    step 3/10  reward 0.500",
        "INFO    step 3/10  valid/reward 0.250",
    ]
    logging.getLogger().removeHandler(console)
    assert capsys.readouterr().err == ""


def test_nothing_steers_a_terminal_that_shows_the_log(tmp_path: Path) -> None:
    with recording() as log:
        log.write_to(tmp_path / "run.log")
        logger.warning("tool said \x1b[2J")
    assert lines(tmp_path / "run.log") == [r"WARNING tool said \x1b[2J"]


def test_a_full_disk_costs_lines_and_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Full:
        def write(self, lines: bytes) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self) -> None:
            pass

    with recording() as log:
        log.write_to(tmp_path / "run.log")
        file: Any = log._file
        file.close()
        log._file = Full()  # type: ignore[assignment]
        for _ in range(3):
            logger.warning("something")
    texts = [record.getMessage() for record in caplog.records if record.name == run_log.logger.name]
    assert texts == ["the log of the run cannot be written any more: [Errno 28] No space left on device"]
    assert (tmp_path / "run.log").read_text() == ""


def test_without_a_directory_nothing_is_left(tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers)
    with recording():
        logger.warning("refused before anything was written")
    assert logging.getLogger().handlers == before and list(tmp_path.iterdir()) == []


def test_the_error_that_ends_a_job_is_the_last_line_after_what_was_counted(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), recording() as log:
        log.write_to(tmp_path / "run.log")
        for _ in range(3):
            repeats.warn(logger, "too slow", "slow")
        raise RuntimeError("out of memory")
    assert lines(tmp_path / "run.log")[-2:] == ["WARNING too slow: seen 3 times", "ERROR   RuntimeError: out of memory"]
