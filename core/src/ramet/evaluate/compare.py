"""Two or more evaluations compared: the difference by task, with an interval that knows that tasks are paired.

Both models answered the same tasks, so the difference of each task's mean scores is the unit: its interval is far
narrower than the intervals of two separate means (Miller 2024, arXiv 2411.00640, section 4). From 50 tasks on it is a
percentile bootstrap over tasks (Efron 1979), with a fixed seed, so that the same files give the same interval. With
fewer tasks the bootstrap is too narrow (2 to 8 tasks of equal models: 11 to 19 % false differences), so there it is
Student's t of the paired differences. Fewer than 6 tasks, or differences that are all equal, have no interval.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.statistics import CONFIDENCE, over_tasks

RESAMPLES = 10_000
FEWEST = 6  # tasks that have an interval
MANY = 50  # tasks from which on it is the bootstrap's
DRAWS = 1 << 20  # of tasks, in memory at the same time
EQUAL = 1e-9  # mean scores closer than this are tied


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    """The mean scores of one task."""

    task: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """One metric of one benchmark that both results have, over the tasks that both have judged."""

    benchmark: str
    metric: str
    before: float  # mean over those tasks
    after: float
    low: float | None  # 95 % interval of `after - before`; None: see `interval`
    high: float | None
    won: tuple[TaskPair, ...]  # tasks with a higher mean score after, the largest difference first
    lost: tuple[TaskPair, ...]
    n_tasks: int
    left_out: int  # tasks that one of the two lacks, or has with other gold answers: those are not the same task

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[PairedComparison]:
    """Every metric that both have. Raises `ConfigError` if there is none, or no task that both have judged."""
    earlier = {result["name"]: result for result in before["results"]}
    comparisons = []
    for result in after["results"]:
        name = result["name"]
        if name not in earlier:
            continue
        earlier_metrics = {metric["metric"] for metric in earlier[name]["metrics"]}
        same = _same_tasks(earlier[name], result)
        for metric in (m["metric"] for m in result["metrics"] if m["metric"] in earlier_metrics):
            comparisons.append(
                _compared(name, metric, task_means(earlier[name], metric), task_means(result, metric), same)
            )
    if not comparisons:
        names = " and ".join(", ".join(r["name"] for r in body["results"]) or "none" for body in (before, after))
        raise ConfigError(f"the results have no benchmark and metric in common: they are of {names}")
    return comparisons


def task_means(result: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Task id -> mean score of its judged rollouts; tasks without any are left out."""
    means = {}
    for task in result["tasks"]:
        scores = [s for r in task["rollouts"] if (s := r["scores"].get(metric)) is not None]
        if scores:
            means[task["task"]] = fmean(scores)
    return means


def _same_tasks(before: Mapping[str, Any], after: Mapping[str, Any]) -> set[str]:
    """Ids of the tasks that both have with the same gold answers: ids may be numbers of rows, of other files."""
    golds = {task["task"]: task["gold"] for task in before["tasks"]}
    return {task["task"] for task in after["tasks"] if golds.get(task["task"]) == task["gold"]}


def _compared(
    benchmark: str, metric: str, before: Mapping[str, float], after: Mapping[str, float], same: Collection[str]
) -> PairedComparison:
    both = [
        TaskPair(task=task, before=before[task], after=after[task]) for task in before if task in after and task in same
    ]
    if not both:
        raise ConfigError(
            f"benchmark {benchmark}, metric {metric}: the two results have no judged task in common; they are of other "
            "tasks, or nothing was judged"
        )
    differences = [pair.after - pair.before for pair in both]
    low, high = interval(differences)
    ranked = sorted(both, key=lambda pair: (-abs(pair.after - pair.before), pair.task))
    return PairedComparison(
        benchmark=benchmark,
        metric=metric,
        before=fmean(pair.before for pair in both),
        after=fmean(pair.after for pair in both),
        low=low,
        high=high,
        won=tuple(pair for pair in ranked if pair.after - pair.before > EQUAL),
        lost=tuple(pair for pair in ranked if pair.before - pair.after > EQUAL),
        n_tasks=len(both),
        left_out=len({*before, *after}) - len(both),
    )


def interval(differences: Sequence[float]) -> tuple[float | None, float | None]:
    """The 95 % interval of the mean of one difference per task; None if there are too few, or all are equal."""
    n = len(differences)
    if n < FEWEST or max(differences) - min(differences) <= EQUAL:
        return None, None
    if n >= MANY:
        return bootstrap(differences)
    estimate = over_tasks(differences)
    assert estimate.mean is not None and estimate.half_width is not None
    return estimate.mean - estimate.half_width, estimate.mean + estimate.half_width


def bootstrap(values: Sequence[float], *, seed: int = 1) -> tuple[float, float]:
    """The 95 % percentile interval of the mean of one value per task."""
    import numpy as np  # only here: reports are written without it

    n = len(values)
    rng, array = np.random.default_rng(seed), np.asarray(values, dtype=np.float64)
    at_once = max(1, DRAWS // n)
    sizes = [min(at_once, RESAMPLES - start) for start in range(0, RESAMPLES, at_once)]
    means = np.sort(np.concatenate([array[rng.integers(n, size=(size, n))].mean(axis=1) for size in sizes]))
    tail = round((1 - CONFIDENCE) / 2 * RESAMPLES)
    return float(means[tail]), float(means[-tail - 1])
