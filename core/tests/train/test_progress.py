from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ramet.policy.progress import PassProgress
from ramet.rollout.progress import RolloutProgress
from ramet.tracking.live import line_of
from ramet.train.progress import REWARDS, SAVING, TrainProgress


class Run:
    """What a backend says, and the clock, as a test sets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.playing = RolloutProgress()
        self.computing: PassProgress | None = None
        for module in ("ramet.train.progress", "ramet.tracking.rollout_parts"):
            monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: self.now))
        rollouts = SimpleNamespace(progress=lambda: self.playing)
        policy = SimpleNamespace(progress=lambda: self.computing)
        backend: Any = SimpleNamespace(rollouts=rollouts, policy=policy)
        self.progress = TrainProgress(backend, total_steps=10, done=4)

    @property
    def line(self) -> str:
        return line_of(self.progress.parts(), 200)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_rollouts_forks_tools_and_tokens_per_second(run: Run) -> None:
    run.playing = RolloutProgress(total=64, tokens=1000)
    with run.progress.doing(REWARDS):
        assert run.line == "step 5/10  rollouts 0/64  0 in tools"
        run.now += 2.0
        run.playing = RolloutProgress(total=64, done=12, forks=7, in_tools=9, turns=31, tokens=4000)
        assert run.line == "step 5/10  rollouts 12/64  31 turns  7 forks  9 in tools  1500 tok/s"
        run.now += 3.0  # no turn ended since: what long ones sample is counted when they end
        assert run.line.endswith("1500 tok/s")
        run.playing = RolloutProgress(tokens=9000)
        assert run.line == "step 5/10  rewards"
    assert run.line == "step 5/10"


def test_phases_and_micro_batches(run: Run) -> None:
    with run.progress.doing("validation", validated=0):
        run.playing = RolloutProgress(total=8, done=1)
        assert run.line == "step 0/10  validation  rollouts 1/8  0 in tools"
    run.computing = PassProgress("update", 3, 8)
    run.playing = RolloutProgress(total=64)  # the next step's, with train.staleness
    assert run.line == "step 5/10  update 3/8  rollouts 0/64  0 in tools"


def test_the_time_left_is_that_of_the_run(run: Run) -> None:
    run.progress.restart_clock()
    run.now += 60.0
    run.progress.step_done(5)
    assert run.line == "step 6/10  left 5m00"
    run.now += 20.0
    assert run.line == "step 6/10  left 4m40"
    run.now += 1000.0
    assert run.line == "step 6/10  left 0.0s"


def test_after_the_last_step_no_further_one_is_named(run: Run) -> None:
    run.progress.step_done(10)
    assert run.line.startswith("step 10/10")


def test_what_is_saved_is_the_step_that_is_done(run: Run) -> None:
    run.progress.restart_clock()
    run.progress.step_done(5)
    with run.progress.doing(SAVING):
        assert run.line == "step 5/10  saving  left 0.0s"
    run.playing = RolloutProgress(total=64)  # cancelled, and not gone yet
    run.progress.stopping()
    assert run.line == "step 5/10  saving, then stopping"
