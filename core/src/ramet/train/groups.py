"""One step's groups: played, scored while others still play, and checked to be whole."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from ramet.cluster.interfaces import Rollouts
from ramet.errors import InfraError
from ramet.rollout.plan import check_groups
from ramet.rollout.scoring import UNJUDGED, ScoredGroup
from ramet.rollout.worker import RolloutPlan
from ramet.types import Group, Task


class Scores(Protocol):
    """The run's scorer, or what scores a validation."""

    async def score(self, group: Group) -> ScoredGroup: ...


async def play(
    rollouts: Rollouts, scorer: Scores, tasks: Sequence[Task], *, step: int, plan: RolloutPlan
) -> list[ScoredGroup]:
    """Groups in order of `tasks`. A group is scored as soon as it is complete, while others are under way.

    A reward that breaks the contract stops the playing at once.
    """
    scored: dict[int, ScoredGroup] = {}  # by the group itself: a task may stand in a step twice

    async def score(group: Group) -> None:
        scored[id(group)] = await scorer.score(group)

    try:
        async with asyncio.TaskGroup() as work:
            playing = work.create_task(
                rollouts.run(tasks, step=step, plan=plan, on_group=lambda group: _spawn(work, score(group)))
            )
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    check_groups(playing.result(), tasks, rollouts.group_size(plan))
    return [scored[id(group)] for group in playing.result()]


def _spawn(work: asyncio.TaskGroup, scoring: Coroutine[Any, Any, None]) -> None:
    work.create_task(scoring)


def check_infrastructure(groups: Sequence[ScoredGroup], limit: float) -> None:
    """Raise `InfraError` if more than `limit` of the rollouts are masked; the message names the commonest fault.

    What rewards could not judge has a limit of its own (`check_failures`).
    """
    rollouts = [r.rollout for group in groups for r in group.rollouts]
    faults = [r.fault for r in rollouts if r.fault is not None and not r.fault.where.startswith(UNJUDGED)]
    if len(faults) <= limit * len(rollouts):
        return
    where = max({f.where for f in faults}, key=lambda w: sum(f.where == w for f in faults))
    message = next(f.message for f in faults if f.where == where)
    raise InfraError(
        f"{len(faults)} of {len(rollouts)} rollouts were masked by infrastructure faults (limit "
        f"rollout.max_infra_rate={limit:g}); most often {where}: {message}"
    )
