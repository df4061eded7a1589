"""Trackers in a thread: what they do wrong costs the caller nothing and is told."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from ramet.tracking.background import BackgroundTracker

METRICS = {"reward/mean": 0.5}


class Kept:
    """Keeps what it is told, and waits before each step until `gate` is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.told: list[object] = []
        self.threads: set[int] = set()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.gate.wait(30)
        self.threads.add(threading.get_ident())
        self.told.append((step, dict(metrics)))

    def rewind(self, step: int) -> None:
        self.told.append(f"rewind {step}")

    def ended(self, exit_code: int) -> None:
        self.told.append(f"ended {exit_code}")

    def close(self) -> None:
        self.told.append("closed")


@pytest.fixture
def kept() -> Iterator[Kept]:
    tracker = Kept()
    yield tracker
    tracker.gate.set()  # no thread outlives its test


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_all_calls_arrive_in_order_in_one_thread_and_metrics_are_copied(kept: Kept) -> None:
    background, metrics = BackgroundTracker("kept", lambda: kept), dict(METRICS)
    background.rewind(0)
    background.log(1, metrics)
    metrics["reward/mean"] = 9.0
    background.log(2, metrics)
    background.end(143)
    background.close()
    assert kept.told == ["rewind 0", (1, METRICS), (2, {"reward/mean": 9.0}), "ended 143", "closed"]
    assert len(kept.threads) == 1 and threading.get_ident() not in kept.threads


def test_what_does_not_fit_into_the_queue_is_dropped_and_told_once(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.gate.clear()
    background = BackgroundTracker("slow", lambda: kept, capacity=2)
    background.log(1, METRICS)
    until(lambda: not background._waiting)  # the thread has taken it
    for step in range(2, 7):
        background.log(step, METRICS)
    kept.gate.set()
    background.close()
    assert [told[0] for told in kept.told if isinstance(told, tuple)] == [1, 2, 3]
    assert messages(caplog) == ["tracker slow: dropped 3 of 6 calls (queue full)"]


def test_one_that_hangs_is_reported_and_not_waited_for(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.gate.clear()
    background = BackgroundTracker("stuck", lambda: kept, slow_s=0.05)
    background.log(1, METRICS)
    until(background._is_slow)
    started = time.monotonic()
    for step in range(2, 1002):
        background.log(step, METRICS)
    background.close(wait_s=60)
    assert time.monotonic() - started < 30
    assert messages(caplog) == [
        "tracker stuck has not returned for 0.05 s; the run continues without it",
        "tracker stuck: 1000 of 1001 calls were not made; it did not close in time; the run ends without it",
    ]


def test_one_that_hangs_while_it_is_made_is_left_behind(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.gate.clear()

    def make() -> Kept:
        kept.gate.wait(30)
        return kept

    background = BackgroundTracker("stuck", make)
    background.log(1, METRICS)
    background.close(wait_s=0.01)
    [message] = messages(caplog)
    assert message.startswith("tracker stuck: 1 of 1 calls were not made; ")


def test_failures_are_counted_and_the_first_is_shown(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Kept):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            raise ConnectionError("no route to host")

    line = f"core/tests/tracking/test_background.py:{Broken.log.__code__.co_firstlineno + 1}"
    broken = Broken()
    background = BackgroundTracker("broken", lambda: broken)
    for step in range(1, 4):
        background.log(step, METRICS)
    background.close()
    assert broken.told == ["ended 0", "closed"]
    assert messages(caplog) == [
        f"tracker broken failed, the run continues: ConnectionError('no route to host') ({line})",
        "tracker broken: 3 of 3 calls failed",
    ]


def test_one_that_cannot_be_made_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def make() -> Kept:
        raise SystemExit("not configured")

    line = f"core/tests/tracking/test_background.py:{make.__code__.co_firstlineno + 1}"
    background = BackgroundTracker("absent", make, capacity=2)
    for step in range(9):
        background.log(step, METRICS)
    background.close()
    background.log(10, METRICS)
    assert messages(caplog) == [
        f"tracker absent could not be made, the run continues without it: SystemExit('not configured') ({line})"
    ]


def test_one_without_interest_in_the_outcome_is_closed_alone(caplog: pytest.LogCaptureFixture) -> None:
    told = []

    class Plain:
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            told.append(step)

        def rewind(self, step: int) -> None: ...

        def close(self) -> None:
            told.append("closed")

    background = BackgroundTracker("plain", Plain)
    background.log(1, METRICS)
    background.close()
    assert told == [1, "closed"] and messages(caplog) == []


POOLED = """
import logging, sys, time
from concurrent.futures import ThreadPoolExecutor
from ramet.tracking.background import BackgroundTracker, exit_soon

class Pooled:
    def __init__(self):
        self.pool = ThreadPoolExecutor(1)  # the interpreter waits for its threads

    def log(self, step, metrics):
        self.pool.submit(time.sleep, 100).result()

    def close(self): ...

logging.basicConfig(format="%(message)s")
tracker = BackgroundTracker("pooled", Pooled)
tracker.log(1, {})
time.sleep(0.2)
tracker.close(wait_s=0.1)
exit_soon(3, within_s=0.1)
print("the run has ended", flush=True)
sys.exit(3)
"""


def test_threads_of_one_that_hangs_do_not_keep_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", POOLED], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (3, "the run has ended\n")
    assert ended.stderr.startswith("tracker pooled: it did not close in time")


def test_what_one_does_after_its_run_has_ended_is_not_told(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.gate.clear()

    def make() -> Kept:
        kept.gate.wait(30)
        raise ConnectionError("abandoned")

    background = BackgroundTracker("late", make)
    background.close(wait_s=0.01)
    kept.gate.set()
    background._thread.join(30)
    [message] = messages(caplog)
    assert message.startswith("tracker late: it did not close in time")
