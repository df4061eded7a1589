"""F17: a loss that is not a number."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

from ramet.policy.checkpoint import verify
from ramet.policy.errors import TrainingDiverged


def weights(run: Path, step: int) -> str:
    return hashlib.sha256((run / f"checkpoints/step_{step:06d}/weights.safetensors").read_bytes()).hexdigest()


def optimizer(run: Path, step: int) -> dict[str, Any]:
    state = torch.load(run / f"checkpoints/step_{step:06d}/rank_00000.pt", weights_only=True)["optimizer"]
    return {f"{number}.{name}": value for number, values in state.items() for name, value in values.items()}


def train(house, name: str, *more: str, bad: tuple[int, int], steps: int) -> Path:
    params = [f"policy_loss.params.first_bad={bad[0]}", f"policy_loss.params.last_bad={bad[1]}"]
    return house.train(name, "policy_loss=fault_loss", *params, *more, steps=steps)


def test_one_bad_step_is_skipped_and_leaves_weights_and_optimizer_as_they_were(house):
    run = train(house, "one", bad=(2, 2), steps=3)
    assert weights(run, 1) == weights(run, 2) != weights(run, 3)
    before, after = optimizer(run, 1), optimizer(run, 2)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert [line["train/skipped_updates"] for line in house.metrics("one")] == [0, 1, 0]
    assert house.records("one", 2), "what the step learned from is on disk"


def test_three_in_a_row_stop_the_run_and_the_last_good_state_is_saved(house):
    good = train(house, "good", bad=(2, 2), steps=2)
    with pytest.raises(TrainingDiverged, match=r"step 4: loss nan.*3 times in a row"):
        train(house, "three", "train.save_every=100", bad=(2, 9), steps=9)
    run = house.runs / "three"
    assert [folder.name for folder in (run / "checkpoints").iterdir()] == ["step_000003"]
    assert verify(run / "checkpoints/step_000003") == []
    assert weights(run, 3) == weights(good, 1)
    assert house.records("three", 4)


def test_a_resume_of_a_run_that_diverged_does_not_begin_to_count_anew(house):
    with pytest.raises(TrainingDiverged, match=r"step 4: .*3 times in a row"):
        train(house, "again", "train.save_every=100", bad=(2, 9), steps=9)
    with pytest.raises(TrainingDiverged, match=r"step 4: .*in a row"):
        train(house, "again", "train.save_every=100", bad=(2, 9), steps=9)
    allowed = ["train.save_every=100", "run.allow_config_change=true"]
    run = train(house, "again", *allowed, bad=(2, 3), steps=5)  # the cause is gone
    assert weights(run, 3) != weights(run, 5)


def test_weights_between_two_steps_are_never_saved_as_those_of_a_step(house, monkeypatch):
    """A good optimiser step, and then three bad ones, all within step 2."""
    from ramet.policy.worker import PolicyWorker

    step, calls = PolicyWorker._optimizer_step, []

    def breaking(self, *arguments, **named):
        calls.append(named["step"])
        if calls.count(2) > 1:
            self._count_bad(False, float("nan"), 0.0, named["step"], [])
            return False
        return step(self, *arguments, **named)

    monkeypatch.setattr(PolicyWorker, "_optimizer_step", breaking)
    with pytest.raises(TrainingDiverged):
        house.train("within", "train.minibatches=4", "train.save_every=100", steps=3)
    assert not list((house.runs / "within/checkpoints").iterdir())
