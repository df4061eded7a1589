"""The results of an evaluation: the statistics of every benchmark, and the file that holds them with everything that a
reader needs to believe or to repeat a number.
"""

from __future__ import annotations

import itertools
import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError, InfraError, PluginError, RametError
from ramet.evaluate.header import SCHEMA, Header, plain
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

NO_TASKS = '\n   "tasks": []'  # of a benchmark in the file, without tasks


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
        """Of every rollout without a score in the main metric, why."""
        rollouts = (rollout for task in self.tasks for rollout in task.rollouts)
        found = (rollout.why_missing(self.metrics[0].metric) for rollout in rollouts)
        return [reason for reason in found if reason is not None]

    @property
    def judged(self) -> str:
        return f"{self.n_judged} of {self.n_rollouts} judged"

    def means(self) -> dict[str, float | None]:
        """avg@k by metric, and `METRIC/pass@J` for the largest j, if it is over 1. None: not known."""
        found: dict[str, float | None] = {}
        for metric in self.metrics:
            last = metric.passes[-1]
            found[metric.metric] = metric.avg.mean
            if last.k > 1:
                found[f"{metric.metric}/pass@{last.k}"] = last.estimate.mean
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Of an evaluation whose tasks are in its partial file, without their texts (`TaskResult.without_texts`)."""

    header: Header
    benchmarks: tuple[BenchmarkResult, ...] = field(default=())
    rollouts: Mapping[str, Any] | None = None  # hash and number of the recorded groups

    def body(self) -> dict[str, Any]:
        """The content of the file, without the tasks."""
        found = [{**as_object(replace(b, tasks=())), "judged": b.judged} for b in self.benchmarks]
        return {**self.header.body(), "rollouts": self.rollouts, "results": plain(found)}

    def text(self, tasks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """The file in pieces, as `json.dumps` with an indent of 1 would write it. `tasks`: the objects of all tasks in
        their order, one at a time, since together they may be larger than the memory.
        """
        rest = iter(tasks)
        first, *others = json.dumps(self.body(), indent=1, allow_nan=False).split(NO_TASKS)
        yield first
        for benchmark, piece in zip(self.benchmarks, others, strict=True):
            before = NO_TASKS[:-1]
            for task in itertools.islice(rest, len(benchmark.tasks)):
                yield before + textwrap.indent("\n" + json.dumps(task, indent=1, allow_nan=False), " " * 4)
                before = ","
            yield ("\n   ]" if benchmark.tasks else NO_TASKS) + piece
        yield "\n"

    def metrics(self) -> dict[str, float]:
        """What trackers are told: means over tasks, by name. What could not be judged is left out."""
        found: dict[str, float | None] = {}
        for benchmark in self.benchmarks:
            name = benchmark.name
            found |= {f"eval/{name}/{metric}": mean for metric, mean in benchmark.means().items()}
            found[f"eval/{name}/tool_use"] = benchmark.tools.share_using
            found[f"eval/{name}/judged_share"] = benchmark.n_judged / benchmark.n_rollouts
        return {name: value for name, value in found.items() if value is not None}


def measured(
    name: str, results: Iterable[TaskResult], names: Sequence[str], *, k: int, pass_at: Sequence[int]
) -> BenchmarkResult:
    """The statistics of a benchmark's tasks, which may be in any order; `names` are its metrics."""
    tasks = tuple(sorted(results, key=lambda result: result.task))
    answers = answers_of(tasks)
    metrics = tuple(summarise(one, scores_of(tasks, one), answers, k=k, pass_at=pass_at) for one in names)
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
            f"judged (limit evaluate.max_masked_share={limit:g}); most often {commonest.removeprefix(DEFECT)}"
        )
    if problems:
        raise kind(
            f"{'; '.join(problems)}. No results are written, since those left would be a biased subset. What is judged "
            f"is kept in {partial}: remove the cause and start the same command again, which plays only what is missing"
        )


def read_results(path: Path) -> dict[str, Any]:
    """A finished results file. Raises `ConfigError` if it is missing, broken or of another schema."""
    try:
        body = json.loads(path.read_text(encoding="ascii"))
    except OSError as error:
        raise ConfigError(f"{path}: not a readable results file: {error}") from error
    except ValueError as error:
        raise ConfigError(
            f"{path}: not a results file: it is not one JSON object; `ramet eval` writes results.json into its run's "
            "directory"
        ) from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: not a results file of schema {SCHEMA}")
    if "judge" in body:
        raise ConfigError(f"{path}: is what the judge {body['judge']} said; name the results that it judged instead")
    return body


def check_tasks(path: Path, body: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if a task of these results cannot be read."""
    try:
        for task in (task for one in body["results"] for task in one["tasks"]):
            TaskResult.from_body(task)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: not results that this version of Ramet can read: {error!r}") from error
