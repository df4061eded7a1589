"""The record of a step is written beside its update, and is whole before anything uses the new weights."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ramet.train.learning
from ramet.config.schema import Config
from ramet.errors import InfraError
from ramet.rollout.record import read_records
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.doubles import answered_rollout
from ramet.train.groups import StepClock
from ramet.train.learning import Learner
from ramet.train.preemption import Preemption
from ramet.train.recording import record_path, record_step
from ramet.train.run import TrainState
from ramet.train.step_rollouts import PlayedStep
from ramet.types import AdvantageInputs, AdvantageOutput, Need, Task, user_prompt

TASK = Task(id="t", prompt=user_prompt("?"))


class Plain:
    needs: frozenset[Need] = frozenset()

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        return AdvantageOutput(advantages=torch.where(batch.mask, batch.rewards[:, None], 0.0))


class Updates:
    """Ranks whose update is seen from the record's thread, and fails if it is to."""

    def __init__(self, *, fails: bool) -> None:
        self.fails = fails
        self.began = threading.Event()

    async def call(self, function: object, batch: object, step: int) -> dict[str, float]:
        self.began.set()
        if self.fails:
            raise InfraError("a rank is lost")
        return {"train/updates": 1.0}


@pytest.mark.parametrize("fails", [False, True])
def test_it_is_written_beside_the_update_and_awaited(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Updates(fails=fails)

    def record_during_the_update(*args: Any, **options: Any) -> None:
        assert policy.began.wait(timeout=20), "the update waits for the record"
        record_step(*args, **options)

    monkeypatch.setattr(ramet.train.learning, "record_step", record_during_the_update)
    rollouts = [replace(answered_rollout(TASK, text), id=text) for text in ("a", "b")]
    scored = tuple(ScoredRollout(rollout=rollout, reward=float(i)) for i, rollout in enumerate(rollouts))
    played = PlayedStep(groups=[ScoredGroup(task=TASK, rollouts=scored)], replaced=[])
    learner = Learner(
        Config(),
        folder=tmp_path,
        ranks=policy,  # type: ignore[arg-type]
        critic=None,
        estimator=Plain(),
        needs_reference=False,
        state=TrainState(data_fingerprint=""),
        preemption=Preemption(1.0),
    )
    with pytest.raises(InfraError) if fails else contextlib.nullcontext():
        asyncio.run(learner.learn(1, played, None, StepClock()))
    (record,) = read_records(record_path(tmp_path, 1))
    assert record.advantages["b"].tolist() == [1.0] * len(record.advantages["b"])
