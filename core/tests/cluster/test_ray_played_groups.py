"""What a rollout worker does with its groups, in the threads in which it does it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("ray")

from ramet.cluster.ray.played_groups import GroupPlace, PartGroup, PlayedGroups
from ramet.rollout.scoring import Scorer, WeightedReward
from ramet.types import Group, Rollout, RolloutScore, StopReason, Task, per_rollout


def test_groups_are_scored_while_those_of_another_step_are_written(tmp_path: Path) -> None:
    """Rewards run in the worker's event loop, and records are written in another thread."""
    played, task = PlayedGroups(), Task(id="t", prompt=())
    group = Group(task=task, rollouts=(Rollout(id="1", task=task, segments=(), stop=StopReason.END),))
    scorer = Scorer([WeightedReward(name="r", plugin="p", reward=per_rollout(lambda rollout: 1.0))])
    for ticket in range(2000):
        played.keep(ticket, [group])

    def write() -> None:
        for ticket in range(100, 150):
            part = PartGroup(
                place=GroupPlace(ticket, 0),
                step=1,
                scores={"1": RolloutScore(reward=1.0)},
                advantages={},
                number=None,
                greedy=(),
            )
            played.write(tmp_path / f"{ticket}.jsonl.gz", [part])

    async def work() -> None:
        writing = asyncio.create_task(asyncio.to_thread(write))
        while not writing.done():
            [scores] = await played.score(7, 1, scorer)
            assert scores["1"].reward == 1.0
        await writing

    switched = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        asyncio.run(work())
    finally:
        sys.setswitchinterval(switched)
