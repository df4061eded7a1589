"""F14: the disk is full while a checkpoint is written."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from ramet.policy.checkpoint.store import verify
from ramet.policy.errors import CheckpointError
from ramet.train.run import TrainState


@pytest.fixture
def fill_disk(monkeypatch):
    """From now on no checkpoint of these steps can be written; other steps can."""
    save = TrainState.save

    def fill(*steps: int) -> None:
        def full(state: TrainState, folder: Path) -> None:
            if state.step in steps:
                raise OSError(errno.ENOSPC, "No space left on device")
            save(state, folder)

        monkeypatch.setattr(TrainState, "save", full)

    return fill


def checkpoints(run: Path) -> list[str]:
    """Names of all that lies there; what is there must be whole."""
    found = sorted((run / "checkpoints").iterdir())
    assert [verify(folder) for folder in found] == [[] for _ in found]
    return [folder.name for folder in found]


def test_one_full_disk_costs_one_checkpoint_and_is_said_loudly(workspace, fill_disk, caplog):
    fill_disk(2, 4)
    run = workspace.train("once", steps=5)
    assert checkpoints(run) == ["step_000001", "step_000003", "step_000005"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    [said] = [text for text in warnings if text.startswith("CHECKPOINT OF STEP 2 NOT SAVED")]
    assert "No space left on device" in said and "loses the work after step 1" in said
    assert [line["step"] for line in workspace.metrics("once")] == [1, 2, 3, 4, 5]
    assert (run / "model/model.safetensors").exists()


def test_two_in_a_row_stop_the_run_and_the_older_checkpoint_is_resumed(workspace, fill_disk, caplog):
    fill_disk(2, 3)
    with pytest.raises(CheckpointError, match=r"2 saves in a row .*step_000003: not written"):
        workspace.train("twice", steps=5)
    run = workspace.runs / "twice"
    assert checkpoints(run) == ["step_000001"]
    fill_disk()
    with caplog.at_level(logging.INFO, logger="ramet"):
        workspace.train("twice", steps=5)
    assert "resumed after step 1" in caplog.text
    assert checkpoints(run) == ["step_000003", "step_000004", "step_000005"]
    assert [line["step"] for line in workspace.metrics("twice")] == [1, 2, 3, 4, 5]


def test_where_no_save_comes_after_it_the_first_failure_is_an_error(workspace, fill_disk):
    fill_disk(2)
    with pytest.raises(CheckpointError, match=r"step_000002: not written: .*No space left"):
        workspace.train("last", steps=2)
    assert checkpoints(workspace.runs / "last") == ["step_000001"]
