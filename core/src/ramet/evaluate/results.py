"""The results of an evaluation: the statistics of every benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramet.errors import InfraError, PluginError, RametError
from ramet.evaluate.header import Header, plain
from ramet.evaluate.statistics import MetricSummary, summarise
from ramet.evaluate.tasks import (
    RolloutEnds,
    TaskResult,
    ToolStatistics,
    answers_of,
    rollout_ends,
    scores_of,
    tool_statistics,
)
from ramet.io.json_values import as_object
from ramet.rollout.faults import DEFECT


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """One benchmark. The first metric is the main one."""

    name: str
    metrics: tuple[MetricSummary, ...]
    tools: ToolStatistics
    tasks: tuple[TaskResult, ...]
    n_rollouts: int
    n_judged: int  # rollouts with a score in the main metric
    ends: RolloutEnds

    def reasons_missing(self) -> list[str]:
        """Return why each rollout without a score in the main metric has none."""
        rollouts = (rollout for task in self.tasks for rollout in task.rollouts)
        reasons = (rollout.why_missing(self.metrics[0].metric) for rollout in rollouts)
        return [reason for reason in reasons if reason is not None]

    @property
    def judged(self) -> str:
        return f"{self.n_judged} of {self.n_rollouts} judged"

    def body(self) -> dict[str, Any]:
        """Return the entry of `results` in a file, with its tasks."""
        body: dict[str, Any] = plain({**as_object(self), "judged": self.judged})
        return body

    def means(self) -> dict[str, float | None]:
        """avg@k by metric, and `METRIC/pass@J` for the largest j, if it is over 1. None: not known."""
        by_metric: dict[str, float | None] = {}
        for metric in self.metrics:
            last = metric.passes[-1]
            by_metric[metric.metric] = metric.avg.mean
            if last.k > 1:
                by_metric[f"{metric.metric}/pass@{last.k}"] = last.estimate.mean
        return by_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Results of an evaluation whose tasks are in its partial file, without texts (`TaskResult.without_texts`)."""

    header: Header
    benchmarks: tuple[BenchmarkResult, ...] = field(default=())

    def body(self) -> dict[str, Any]:
        """The content of the summary, without the hashes of the files of tasks and rollouts."""
        results = [result.body() for result in self.benchmarks]
        for result in results:
            del result["tasks"]
        return {**self.header.body(), "results": results}

    def metrics(self) -> dict[str, float]:
        """Return the values for trackers: means over tasks, by name. What could not be judged is left out."""
        values: dict[str, float | None] = {}
        for benchmark in self.benchmarks:
            name = benchmark.name
            values |= {f"eval/{name}/{metric}": mean for metric, mean in benchmark.means().items()}
            values[f"eval/{name}/tool_use"] = benchmark.tools.share_using
            values[f"eval/{name}/judged_share"] = benchmark.n_judged / benchmark.n_rollouts
        return {name: value for name, value in values.items() if value is not None}


def measured(
    name: str, results: Iterable[TaskResult], names: Sequence[str], *, k: int, pass_at: Sequence[int]
) -> BenchmarkResult:
    """The statistics of a benchmark's tasks, which may be in any order; `names` are its metrics."""
    tasks = tuple(sorted(results, key=lambda result: result.task))
    answers = answers_of(tasks)
    metrics = tuple(summarise(metric, scores_of(tasks, metric), answers, k=k, pass_at=pass_at) for metric in names)
    return BenchmarkResult(
        name=name,
        metrics=metrics,
        tools=tool_statistics(tasks, names[0]),
        tasks=tasks,
        n_rollouts=metrics[0].n_rollouts,
        n_judged=metrics[0].n_judged,
        ends=rollout_ends(tasks),
    )


def check_complete(results: Results, limit: float, partial: Path) -> None:
    """Raise `InfraError` if more than `limit` of a benchmark's rollouts have no score, `PluginError` if the commonest
    reason is a defect of a plugin.
    """
    kind: type[RametError] = InfraError
    problems = []
    for benchmark in results.benchmarks:
        reasons = Counter(benchmark.reasons_missing())
        if reasons.total() <= limit * benchmark.n_rollouts:
            continue
        commonest = reasons.most_common(1)[0][0]
        kind = PluginError if commonest.startswith(DEFECT) else kind
        problems.append(
            f"benchmark {benchmark.name}: {reasons.total()} of {benchmark.n_rollouts} rollouts were masked or not "
            f"judged (limit rollout.max_masked_share={limit:g}); most often {commonest.removeprefix(DEFECT)}"
        )
    if problems:
        raise kind(
            f"{'; '.join(problems)}. No results are written, since those left would be a biased subset. What is judged "
            f"is kept in {partial}: remove the cause and start the same command again, which runs only what is missing"
        )
