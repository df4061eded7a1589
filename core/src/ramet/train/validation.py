"""Validation during training: the tasks of `data.valid`, greedy, one rollout each, through the same code path."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ramet.cluster.place import Rollouts
from ramet.rollout.scoring import Scorer
from ramet.rollout.worker import RolloutPlan
from ramet.train.groups import play
from ramet.types import Task

PLAN = RolloutPlan(group_size=1, temperature=0.0, top_p=1.0, top_k=0, branch=False, salt="valid")


async def validate(rollouts: Rollouts, scorer: Scorer, tasks: Sequence[Task], *, step: int) -> dict[str, float]:
    """`valid/…`: mean reward overall and by data source, share of rollouts with tool calls, share masked."""
    groups = await play(rollouts, scorer, tasks, step=step, plan=PLAN)
    await rollouts.metrics()  # what validation played must not stand in the next step's counts
    played = [group.rollouts[0] for group in groups]
    judged = [r for r in played if r.reward is not None]
    metrics = {"valid/masked_share": 1 - len(judged) / len(played)}
    if judged:
        metrics["valid/reward"] = statistics.fmean(r.reward for r in judged if r.reward is not None)
        metrics["valid/tool_use"] = statistics.fmean(bool(r.rollout.tool_calls) for r in judged)
    for source in sorted({r.rollout.task.data_source for r in judged if r.rollout.task.data_source}):
        own = [r.reward for r in judged if r.rollout.task.data_source == source and r.reward is not None]
        metrics[f"valid/reward/{source}"] = statistics.fmean(own)
    return metrics
