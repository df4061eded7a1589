"""Readings that several checks of a run use: single rollouts with their scores, means, trends, and findings."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ramet.doctor.thresholds import EXAMPLES, RISE_SE
from ramet.types import Finding, RecordedGroup, Rollout, RolloutRef, RolloutScore, Severity, StoredRun

PAGE = "docs/doctor.md"
REWARD = "reward/roots_mean"


@dataclass(frozen=True, slots=True)
class Seen:
    """One recorded rollout."""

    group: RecordedGroup
    rollout: Rollout

    @property
    def score(self) -> RolloutScore:
        return self.group.group.scores[self.rollout.id]

    @property
    def reward(self) -> float | None:
        return self.score.reward

    @property
    def ref(self) -> RolloutRef:
        return self.group.ref(self.rollout.id)


def unmasked(run: StoredRun) -> list[Seen]:
    """Return the recorded rollouts of training steps, or of the evaluation; masked ones are left out."""
    return [seen for seen in all_rollouts(run) if seen.rollout.valid]


def all_rollouts(run: StoredRun) -> list[Seen]:
    return [Seen(group, rollout) for group in groups_of(run) for rollout in group.group.rollouts]


def groups_of(run: StoredRun) -> list[RecordedGroup]:
    return [group for group in run.groups if group.kind != "valid"]


def examples(seen: Iterable[Seen]) -> tuple[RolloutRef, ...]:
    """Return the places of the first few, one of a group."""
    by_group: dict[tuple[str, int, str], RolloutRef] = {}
    for one in seen:
        by_group.setdefault((one.group.kind, one.group.step, one.group.group.task.id), one.ref)
    return tuple(by_group.values())[:EXAMPLES]


def mean(values: Sequence[float]) -> float | None:
    """Return the mean of the finite values; None without any."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None


def finite(run: StoredRun, name: str) -> list[float]:
    """Return the values of a metric that are numbers, in the order of steps."""
    return [value for value in run.values(name) if math.isfinite(value)]


def number(run: StoredRun, key: str, default: float = 0.0) -> float:
    """Return the value of a key; `default` where it is not a finite number, as `${oc.env:LR}` of a variable."""
    try:
        value = float(run.option(key, default))
    except (TypeError, ValueError, OverflowError):
        return default
    return value if math.isfinite(value) else default


def shown(run: StoredRun, key: str, default: float = 0.0) -> str:
    """Return the value of a key for a text: a number in short, others as they are in the configuration."""
    value = run.option(key, default)
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def thirds(values: Sequence[float]) -> tuple[float, float]:
    """Return the means of the first and the last third of the finite values."""
    values = [value for value in values if math.isfinite(value)]
    size = max(1, len(values) // 3)
    return sum(values[:size]) / size, sum(values[-size:]) / size


def trend(values: Sequence[float]) -> float:
    """Return by how many standard errors the last third is above the first; 0 for fewer than four values.

    Values that are not finite are left out. The noise of a value is estimated from the differences of neighbours.
    """
    values = [value for value in values if math.isfinite(value)]
    if len(values) < 4:
        return 0.0
    first, last = thirds(values)
    noise = statistics.pstdev([after - before for before, after in pairwise(values)]) / math.sqrt(2)
    error = noise * math.sqrt(2 / max(1, len(values) // 3))
    return (last - first) / max(error, 1e-6)


def rises(run: StoredRun) -> bool:
    """Whether the reward of the rollouts from the prompt rises: the run learns."""
    return trend(run.values(REWARD)) > RISE_SE


def severity(value: float, look: float, wrong: float) -> Severity | None:
    """Return the severity of a value that should be small; None below both thresholds."""
    return Severity.PROBLEM if value >= wrong else Severity.WARNING if value >= look else None


def finding(name: str, level: Severity, what: str, text: str, fix: str, seen: Iterable[Seen] = ()) -> Finding:
    """Return a finding of the check `name`, whose paragraph of the page has the same name."""
    return Finding(
        what=what,
        severity=level,
        text=text,
        fix=fix,
        rollouts=examples(seen),
        page=f"{PAGE}#{name}",
        name=name,
    )


def by_step(seen: Iterable[Seen]) -> Iterator[tuple[int, list[Seen]]]:
    """Yield the rollouts of each step that was read, in their order."""
    steps: dict[int, list[Seen]] = {}
    for one in seen:
        steps.setdefault(one.group.step, []).append(one)
    yield from steps.items()


def percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.01 or share == 0 else f"{100 * share:.1g}%"


def quoted(text: str, most: int = 60) -> str:
    """Return a text on one line, cut to its beginning."""
    line = " ".join(text.split())
    return repr(line if len(line) <= most else f"{line[:most]}…")
