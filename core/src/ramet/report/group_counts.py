"""Counts of the recorded groups that metrics lack: mean rewards of groups, for intervals, and why rollouts are masked.

Rollouts of one group are not independent, so the group is the unit of an interval, as the task is in an evaluation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import fmean

from ramet.evaluate.statistics import over_tasks
from ramet.rollout.record import GroupRecord
from ramet.rollout.scoring import ScoredRollout

ROOTS, ALL, VALID = "reward/roots_mean", "reward/mean", "valid/reward"  # metrics that get an interval


@dataclass(slots=True)
class GroupCounts:
    """Counts over the groups of steps and validations."""

    means: dict[str, dict[int, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    masked: Counter[str] = field(default_factory=Counter)  # rollouts of steps, by what masked them

    def counted(self, records: Iterable[GroupRecord], kind: str) -> Iterator[GroupRecord]:
        """Yield the groups of a step (`kind` "step") or of a validation ("valid"), each counted."""
        for record in records:
            scored = record.group.rollouts
            if kind == "step":
                faults = (one.rollout.fault.where if one.rollout.fault else one.rollout.left_out for one in scored)
                self.masked.update(where for where in faults if where is not None)
                self._add(ROOTS, record.step, (one for one in scored if one.rollout.parent is None))
            self._add(ALL if kind == "step" else VALID, record.step, scored)
            yield record

    def _add(self, metric: str, step: int, rollouts: Iterable[ScoredRollout]) -> None:
        rewards = [one.reward for one in rollouts if one.reward is not None]
        if rewards:
            self.means[metric][step].append(fmean(rewards))

    def update(self, other: GroupCounts) -> None:
        """Add the counts of other groups."""
        for metric, steps in other.means.items():
            for step, means in steps.items():
                self.means[metric][step] += means
        self.masked.update(other.masked)

    def half_width(self, metric: str, steps: Iterable[int]) -> float | None:
        """Half of the 95 % interval of the mean reward of these steps; None where it is not known, or all are equal."""
        found = [self.means.get(metric, {}).get(step) for step in steps]
        if not all(found):
            return None
        return over_tasks([mean for means in found if means for mean in means]).half_width or None
