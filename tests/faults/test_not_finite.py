"""F17: a loss that is not a number."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ramet.policy.checkpoint.dcp import read_whole
from ramet.policy.checkpoint.store import verify
from ramet.policy.errors import TrainingDiverged


def saved(run: Path, step: int, kind: str) -> dict[str, Tensor]:
    return read_whole(run / f"checkpoints/step_{step:06d}", f"{kind}.")


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    assert left.keys() == right.keys() and left
    return all(torch.equal(left[name], right[name]) for name in left)


def train(workspace, name: str, *more: str, bad: tuple[int, int], steps: int) -> Path:
    params = [f"policy_loss.params.first_bad={bad[0]}", f"policy_loss.params.last_bad={bad[1]}"]
    return workspace.train(name, "policy_loss=fault_loss", *params, *more, steps=steps)


def test_one_bad_step_is_skipped_and_leaves_weights_and_optimizer_as_they_were(workspace):
    run = train(workspace, "one", bad=(2, 2), steps=3)
    for kind in ("model", "optimizer"):
        assert same(saved(run, 1, kind), saved(run, 2, kind))
        assert not same(saved(run, 2, kind), saved(run, 3, kind))
    assert [line["train/skipped_updates"] for line in workspace.metrics("one")] == [0, 1, 0]
    assert workspace.records("one", 2), "what the step learned from is on disk"


def test_three_in_a_row_stop_the_run_and_the_last_good_state_is_saved(workspace):
    good = train(workspace, "good", bad=(2, 2), steps=2)
    with pytest.raises(TrainingDiverged, match=r"step 4: loss nan.*3 times in a row"):
        train(workspace, "three", "train.save_every=100", bad=(2, 9), steps=9)
    run = workspace.runs / "three"
    assert [folder.name for folder in (run / "checkpoints").iterdir()] == ["step_000003"]
    assert verify(run / "checkpoints/step_000003") == []
    assert same(saved(run, 3, "model"), saved(good, 1, "model"))
    assert workspace.records("three", 4)


def test_a_resume_of_a_run_that_diverged_does_not_begin_to_count_anew(workspace):
    with pytest.raises(TrainingDiverged, match=r"step 4: .*3 times in a row"):
        train(workspace, "again", "train.save_every=100", bad=(2, 9), steps=9)
    with pytest.raises(TrainingDiverged, match=r"step 4: .*in a row"):
        train(workspace, "again", "train.save_every=100", bad=(2, 9), steps=9)
    allowed = ["train.save_every=100", "run.allow_config_change=true"]
    run = train(workspace, "again", *allowed, bad=(2, 3), steps=5)  # the cause is gone
    assert not same(saved(run, 3, "model"), saved(run, 5, "model"))


def test_weights_between_two_steps_are_never_saved_as_those_of_a_step(workspace, monkeypatch):
    """A good optimiser step, and then three bad ones, all within step 2."""
    from ramet.policy.model_trainer import ModelTrainer

    step, calls = ModelTrainer.optimizer_step, []

    def breaking(self, loss, rows, **named):
        calls.append(self.step)
        return step(self, float("nan") if calls.count(2) > 1 else loss, rows, **named)

    monkeypatch.setattr(ModelTrainer, "optimizer_step", breaking)
    with pytest.raises(TrainingDiverged):
        workspace.train("within", "train.minibatches=4", "train.save_every=100", steps=3)
    assert not list((workspace.runs / "within/checkpoints").iterdir())
