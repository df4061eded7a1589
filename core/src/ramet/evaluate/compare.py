"""Two or more evaluations beside each other: the difference by task, with an interval that knows that tasks are paired.

Both models answered the same tasks, so the difference of each task's mean scores is the unit: its interval is far
narrower than those of two separate means (Miller 2024, arXiv 2411.00640, section 4). It is a percentile bootstrap over
tasks (Efron 1979), with a fixed seed, so that the same files give the same interval.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.results import read_results
from ramet.evaluate.statistics import CONFIDENCE

RESAMPLES = 10_000
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
    low: float | None  # 95 % interval of `after - before`; None: fewer than two tasks
    high: float | None
    won: tuple[TaskPair, ...]  # tasks with a higher mean score after, the largest difference first
    lost: tuple[TaskPair, ...]
    n_tasks: int
    left_out: int  # tasks that one of the two lacks

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def load_results(path: Path) -> tuple[Path, dict[str, Any]]:
    """The results file that `path` is or that is in it, or in `runs/PATH`, and its content. Raises `ConfigError`."""
    candidates = [path, path / "results.json", Path("runs") / path / "results.json"]
    for file in candidates:
        if file.is_file():
            return file, read_results(file)
    raise ConfigError(
        f"no results {str(path)!r}: neither a results file, nor a run's directory or name under runs/ with a "
        f"results.json (working directory: {Path.cwd()})"
    )


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[PairedComparison]:
    """Every metric that both have. Raises `ConfigError` if there is none, or no task that both have judged."""
    earlier = {one["name"]: one for one in before["results"]}
    found = []
    for one in after["results"]:
        name = one["name"]
        if name not in earlier:
            continue
        known = {metric["metric"] for metric in earlier[name]["metrics"]}
        for metric in (m["metric"] for m in one["metrics"] if m["metric"] in known):
            found.append(_compared(name, metric, task_means(earlier[name], metric), task_means(one, metric)))
    if not found:
        names = " and ".join(", ".join(r["name"] for r in body["results"]) or "none" for body in (before, after))
        raise ConfigError(f"the results have no benchmark and metric in common: they are of {names}")
    return found


def task_means(result: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Task id -> mean score of its judged rollouts; tasks without any are left out."""
    means = {}
    for task in result["tasks"]:
        scores = [s for r in task["rollouts"] if (s := r["scores"].get(metric)) is not None]
        if scores:
            means[task["task"]] = fmean(scores)
    return means


def _compared(benchmark: str, metric: str, before: Mapping[str, float], after: Mapping[str, float]) -> PairedComparison:
    both = [TaskPair(task=task, before=before[task], after=after[task]) for task in before if task in after]
    if not both:
        raise ConfigError(
            f"benchmark {benchmark}, metric {metric}: the two results have no judged task in common; they are of other "
            "tasks, or nothing was judged"
        )
    differences = [pair.after - pair.before for pair in both]
    low, high = bootstrap(differences)
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


def bootstrap(values: Sequence[float], *, seed: int = 1) -> tuple[float | None, float | None]:
    """The 95 % percentile interval of the mean of one value per task; None for fewer than two tasks."""
    if len(values) < 2:
        return None, None
    rng = random.Random(seed)
    n = len(values)
    means = sorted(sum(rng.choices(values, k=n)) / n for _ in range(RESAMPLES))
    tail = round((1 - CONFIDENCE) / 2 * RESAMPLES)
    return means[tail], means[-tail - 1]
