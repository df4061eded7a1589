"""Continue rollouts from points, score the continuations, and say what each turn was worth."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ramet.cluster.interfaces import Rollouts
from ramet.event_loop import first_error
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.scoring import ScoredGroup, Scorer, check_failures
from ramet.train.groups import check_infrastructure, play
from ramet_replay.credit.files import MeasuredPoint, PointFile
from ramet_replay.credit.points import ChosenRollout, CreditPoint, points_of
from ramet_replay.credit.values import Value, difference, known, value_of

logger = logging.getLogger(__name__)
Report = Callable[[int], None]  # number of measured points


async def measure(
    rollouts: Rollouts,
    scorer: Scorer,
    chosen: Sequence[ChosenRollout],
    file: PointFile,
    *,
    samples: int,
    at_once: int,
    budget: int | None,
    masked_limit: float,
    report: Report | None = None,
) -> int:
    """Measure the points that `file` does not have, `samples` continuations of each, in waves of rollouts that have
    about `at_once` continuations. Returns how many of `chosen` were reached within the budget.

    `budget`: no wave begins once so many tokens are sampled, earlier processes' included; None: unlimited. Raises
    `InfraError` if more than `masked_limit` of a wave's continuations are masked, or a reward failed on more than its
    `max_unjudged`; points with masked ones are then not kept.
    """
    reached = 0
    for wave in _waves(chosen, at_once // samples if budget is not None else None):
        missing = [point for point in points_of(wave) if point.name not in file.points]
        if missing and budget is not None and file.tokens >= budget:
            break
        await _measure_points(rollouts, scorer, missing, file, samples, masked_limit, report)
        reached += len(wave)
    return reached


def _waves(chosen: Sequence[ChosenRollout], points: int | None) -> Iterator[list[ChosenRollout]]:
    """Split the rollouts into parts of about so many points, at least one rollout each; None: one part."""
    wave: list[ChosenRollout] = []
    for rollout in chosen:
        if wave and points is not None and len(points_of([*wave, rollout])) > points:
            yield wave
            wave = []
        wave.append(rollout)
    yield wave


async def _measure_points(
    rollouts: Rollouts,
    scorer: Scorer,
    points: Sequence[CreditPoint],
    file: PointFile,
    samples: int,
    masked_limit: float,
    report: Report | None,
) -> None:
    """Points without a masked continuation are kept at once, others when it is known that they are few."""
    groups: list[ScoredGroup] = []
    late: list[MeasuredPoint] = []

    async def one(point: CreditPoint) -> None:
        plan = RolloutPlan(group_size=samples, branch=False, step_deadline=False, counted=False)
        request = RolloutRequest(tasks=[point.task], step=point.step, plan=plan, begin=point.prefix)
        (group,) = await play(rollouts, scorer, request)
        groups.append(group)
        measured = _measured(point, group)
        if measured.masked:
            late.append(measured)
        else:
            file.add(measured)
        if report is not None:
            report(len(file.points) + len(late))

    async with first_error(), asyncio.TaskGroup() as work:
        for point in points:
            work.create_task(one(point))
    check_infrastructure(groups, masked_limit)
    check_failures(groups, scorer.rewards)
    for measured in late:
        file.add(measured)


def _measured(point: CreditPoint, group: ScoredGroup) -> MeasuredPoint:
    rollouts = [scored.rollout for scored in group.rollouts]
    masked = Counter(
        rollout.fault.where if rollout.fault is not None else str(rollout.left_out)
        for rollout in rollouts
        if not rollout.valid
    )
    return MeasuredPoint(
        point=point.name,
        begins=point.begins,
        rewards=[scored.score for scored in group.rollouts],
        answers=[rollout.answer for rollout in rollouts],
        tokens=sum(rollout.n_sampled_tokens for rollout in rollouts),
        masked=dict(masked),
    )


def credit_rows(chosen: Sequence[ChosenRollout], file: PointFile) -> list[dict[str, Any]]:
    """Return a row for each turn whose points have a value: what it was worth, and the values before and after it."""
    names = {point.name for point in points_of(chosen)}
    seen = [reward for name in names & file.points.keys() for reward in file.points[name].valid]
    scale = sorted({*seen, *(rollout.end for rollout in chosen)})
    return [
        row
        for rollout in chosen
        for turn in range(len(rollout.points))
        if (row := _row(rollout, turn, file, scale)) is not None
    ]


def _row(rollout: ChosenRollout, turn: int, file: PointFile, scale: Sequence[float]) -> dict[str, Any] | None:
    points = [file.points.get(point.name) for point in rollout.points[turn : turn + 2]]
    values = [None if point is None else value_of(point.valid, scale) for point in points]
    is_last = turn == len(rollout.points) - 1
    before, after = values[0], known(rollout.end) if is_last else values[-1]
    if before is None or after is None:
        return None
    calls = [call for call in rollout.scored.rollout.tool_calls if call.turn == turn]
    return {
        "rollout": rollout.name,
        "turn": turn,
        "calls": [{"name": call.name, "arguments": dict(call.arguments), "status": str(call.status)} for call in calls],
        "worth": _body(difference(before, after)),
        "before": _body(before),
        "after": _body(after),
        "is_last": is_last,
        "reward": rollout.end,
        "continuations": [len(point.valid) for point in points if point is not None],
        "masked": [sum(point.masked.values()) for point in points if point is not None],
    }


def _body(value: Value) -> dict[str, float | None]:
    return {"mean": value.mean, "low": value.low, "high": value.high}
