"""`ramet eval --replay RESULT`: score everything that an evaluation played once more, without a model or a network.

The numbers must be those that the file holds; where they are not, a benchmark, its package or the file has changed.
Scores of benchmarks with a judge are taken from the file: their judge would be asked over the network. All others are
started and closed as in an evaluation, with a temporary folder.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from ramet.components.services import RunServices
from ramet.config.stored import stored_entry, stored_seed, typed_options
from ramet.errors import RametError
from ramet.evaluate.compare import load_results
from ramet.evaluate.header import plain
from ramet.evaluate.measure import judge, started
from ramet.evaluate.results import BenchmarkResult, measured
from ramet.evaluate.rollouts_file import read_rollouts
from ramet.evaluate.tables import results_cells
from ramet.evaluate.tasks import TaskResult, task_result
from ramet.event_loop import run_async
from ramet.plugins import load_plugins
from ramet.rollout.record import GroupRecord
from ramet.types import Benchmark, Group, SegmentKind

SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """`differences` names, in words, what is not as in the file; empty: the same numbers."""

    body: Mapping[str, Any]  # a results file's content, computed again
    n_rollouts: int
    from_file: tuple[str, ...]  # benchmarks with a judge, whose scores were taken from the file
    differences: tuple[str, ...]


def run(path: Path) -> None:
    """Replay and print. Raises `RametError` with the differences, if there are any."""
    file, _ = load_results(path)
    found = replay(file)
    Console(file=sys.stdout, highlight=False).print(results_cells(found.body).rich())
    judged = (
        f" (scores of {', '.join(found.from_file)} are from the file: a judge gave them)" if found.from_file else ""
    )
    if found.differences:
        raise RametError(f"{file}: scored again, {'; '.join(found.differences)}{judged}")
    print(f"{file}: {found.n_rollouts} rollouts scored again, the same numbers{judged}")


def replay(file: Path) -> Replayed:
    """Raises `ConfigError` if the file or its rollouts cannot be read, or a benchmark of it is not installed."""
    file, body = load_results(file)
    return run_async(_replay(file, body))


async def _replay(file: Path, body: Mapping[str, Any]) -> Replayed:
    benchmarks = {name: stored_benchmark(body, name) for name in body["benchmarks"]}
    stored = {(t["benchmark"], t["task"]): TaskResult.from_body(t) for one in body["results"] for t in one["tasks"]}
    tasks: dict[str, list[TaskResult]] = {name: [] for name in benchmarks}
    asked = {name: one for name, one in benchmarks.items() if not one.info.judged}
    with TemporaryDirectory(prefix="ramet-replay-") as folder:
        services = RunServices(folder=Path(folder), seed=stored_seed(body["settings"]["config"]))
        async with started(asked, services):
            for name, record in read_rollouts(file, body):
                tasks[name].append(await _scored(name, benchmarks[name], record, stored[name, record.group.task.id]))
    k, pass_at = body["k"], tuple(body.get("pass_at", ()))
    found = [measured(name, tasks[name], benchmarks[name].info.metrics, k=k, pass_at=pass_at) for name in benchmarks]
    again = [plain({**asdict(one), "judged": one.judged}) for one in found]
    return Replayed(
        body={**body, "results": again},
        n_rollouts=sum(one.n_rollouts for one in found),
        from_file=tuple(name for name, one in benchmarks.items() if one.info.judged),
        differences=tuple(_differences(body, found)),
    )


async def _scored(name: str, benchmark: Benchmark, record: GroupRecord, stored: TaskResult) -> TaskResult:
    group = Group(task=record.group.task, rollouts=tuple(one.rollout for one in record.group.rollouts))
    if benchmark.info.judged:
        scores = [one.scores for one in stored.rollouts]
    else:
        scores = [await judge(name, benchmark, rollout) for rollout in group.rollouts]
    prompt = "".join(s.text for s in group.rollouts[0].segments if s.kind is SegmentKind.PROMPT)
    return task_result(name, group, prompt=prompt, scores=scores)


def stored_benchmark(body: Mapping[str, Any], name: str) -> Benchmark:
    """The benchmark with the options that the evaluation had."""
    chosen = stored_entry(body["settings"]["config"], "benchmarks", name)
    entry = load_plugins().get("benchmarks", chosen.get("use") or name)
    where = f"benchmarks.{name}.params"
    options = [] if entry.config is None else [typed_options(entry.config, chosen.get("params"), where)]
    built: Benchmark = entry.build(*options)
    return built


def _differences(body: Mapping[str, Any], found: list[BenchmarkResult]) -> list[str]:
    """By benchmark: metrics whose mean changed, and rollouts whose scores did."""
    words = []
    before = {one["name"]: one for one in body["results"]}
    for one in found:
        old = before[one.name]
        if old == plain({**asdict(one), "judged": one.judged}):
            continue
        means = {metric["metric"]: metric["avg"]["mean"] for metric in old["metrics"]}
        changed = [
            f"{m.metric} is {m.avg.mean}, was {means.get(m.metric)}"
            for m in one.metrics
            if m.avg.mean != means.get(m.metric)
        ]
        rollouts = [
            f"{new.task}/{now.id}"
            for new, task in zip(one.tasks, old["tasks"], strict=True)
            for now, then in zip(new.rollouts, task["rollouts"], strict=True)
            if dict(now.scores) != then["scores"]
        ]
        more = f" and {len(rollouts) - SHOWN} more" if len(rollouts) > SHOWN else ""
        of = f"other scores of {', '.join(rollouts[:SHOWN])}{more}" if rollouts else "other statistics"
        words.append(f"benchmark {one.name}: {', '.join([*changed, of])}")
    return words
