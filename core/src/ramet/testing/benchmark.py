"""Check of benchmarks (hook 7)."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence

from ramet.errors import ConfigError
from ramet.plugins.component_checks import info_problems
from ramet.plugins.output_checks import metrics_problem
from ramet.plugins.plugin_code import defined_at
from ramet.testing.checked import checked, crash
from ramet.testing.doubles import answered_rollout, empty_rollout
from ramet.testing.expect import expect, expect_async
from ramet.types import Benchmark, BenchmarkInfo, Rollout, Task

LIMIT = 8


@checked("load", limited=False)
def check_benchmark(
    benchmark: Benchmark, *, splits: Sequence[str] | None = None, n_scored: int | None = 16
) -> dict[str, int]:
    """Raise `AssertionError` unless the benchmark keeps the contract; returns the number of tasks by split.

    Complete info. Every split (or only `splits`) loads twice with the same, unique ids. A limit gives the first tasks.
    An unknown split is a `ConfigError`. In the first `n_scored` tasks of each split (None: all), once all were loaded,
    every gold answer scores 1 in the main metric and an empty reply 0. Data that is absent is reported as "cannot load:
    …".
    """
    _check_info(getattr(benchmark, "info", None))
    expect_async(benchmark.score, "score")
    _check_unknown_split(benchmark)
    tasks_by_split = {split: _check_split(benchmark, split) for split in splits or benchmark.info.splits}
    # when all are loaded: a run may train on one split and validate on another
    asyncio.run(_check_scores(benchmark, [task for tasks in tasks_by_split.values() for task in tasks[:n_scored]]))
    return {split: len(tasks) for split, tasks in tasks_by_split.items()}


def _check_info(info: object) -> None:
    expect(isinstance(info, BenchmarkInfo), f"info is {type(info).__name__}: give a BenchmarkInfo")
    for name in ("description", "splits", "metrics", "source", "licence"):
        expect(bool(getattr(info, name)), f"info.{name} is empty: a reader of results needs it")
    assert isinstance(info, BenchmarkInfo)
    for problem in info_problems(info):
        raise AssertionError(problem)


def _check_unknown_split(benchmark: Benchmark) -> None:
    try:
        list(benchmark.load("no_such_split", 1))
    except ConfigError:
        return
    except (Exception, SystemExit) as error:
        raise AssertionError(f"an unknown split {crash(error)}; raise a ConfigError that names the splits") from error
    raise AssertionError("an unknown split is loaded without a word: raise a ConfigError that names the splits")


def _check_split(benchmark: Benchmark, split: str) -> list[Task]:
    tasks, again = _load(benchmark, split, None), _load(benchmark, split, None)
    expect(len(tasks) > 0, f"split {split!r} has no tasks")
    for task in tasks:
        _check_task(task, split)
    twice = [id for id, n in Counter(task.id for task in tasks).items() if n > 1]
    expect(not twice, f"split {split!r}: ids are not unique, {twice[:3]} are of several tasks")
    changed = [(a.id, b.id) for a, b in zip(tasks, again, strict=False) if a != b]
    expect(
        tasks == again,
        f"split {split!r}: two loads differ (first: {changed[:1] or [len(tasks), len(again)]}): derive ids and order "
        "from the data, not from chance, time or memory",
    )
    limit = min(LIMIT, max(len(tasks) - 1, 1))  # fewer than there are
    first = _load(benchmark, split, limit)
    expect(
        first == tasks[:limit], f"split {split!r}: limit={limit} gave {len(first)} tasks that are not the first {limit}"
    )
    return tasks


def _load(benchmark: Benchmark, split: str, limit: int | None) -> list[Task]:
    try:
        return list(benchmark.load(split, limit))
    except ConfigError as error:
        raise AssertionError(f"cannot load: split {split!r}: {error}") from error
    except (Exception, SystemExit) as error:
        raise AssertionError(
            f"cannot load: split {split!r}: {crash(error)}; raise a ConfigError that says which data is missing and "
            "how to get it"
        ) from error


def _check_task(task: Task, split: str) -> None:
    expect(isinstance(task, Task), f"split {split!r}: load gave {type(task).__name__}, not Task")
    expect(bool(task.id) and isinstance(task.id, str), f"split {split!r}: id {task.id!r} is not a name")
    expect(task.question.strip() != "", f"task {task.id!r} asks nothing: its prompt has no user message")
    expect(not isinstance(task.answer, str), f"task {task.id!r}: answer is a string, give a tuple of gold answers")
    expect(any(answer.strip() for answer in task.answer), f"task {task.id!r} has no gold answer")
    try:
        json.dumps(dict(task.metadata))
        pickle.dumps(task)
    except (Exception, SystemExit) as error:
        raise AssertionError(f"task {task.id!r}: metadata must be JSON and the task picklable: {error}") from error


async def _check_scores(benchmark: Benchmark, tasks: Sequence[Task]) -> None:
    main = benchmark.info.metrics[0]
    for task in tasks:
        for gold in task.answer:
            score = (await _score(benchmark, answered_rollout(task, gold)))[main]
            expect(
                score == 1.0 or (score is None and benchmark.info.judged),
                f"task {task.id!r}: its gold answer {gold!r} scores {score} in {main!r}, not 1: a perfect reply must "
                "score the maximum",
            )
        empty = (await _score(benchmark, empty_rollout(task)))[main]
        expect(not empty, f"task {task.id!r}: an empty reply scores {empty} in {main!r}, not 0, the minimum")
    if (aclose := getattr(benchmark, "aclose", None)) is not None:
        await aclose()


async def _score(benchmark: Benchmark, rollout: Rollout) -> Mapping[str, float | None]:
    where = f"task {rollout.task.id!r}, reply {rollout.response!r}"
    try:
        scores = await benchmark.score(rollout)
    except (Exception, SystemExit) as error:
        raise AssertionError(f"{where}: score {crash(error)}") from error
    problem = metrics_problem(scores, benchmark.info.metrics, judged=benchmark.info.judged)
    expect(problem is None, f"{where}: {problem}{defined_at(benchmark, 'score')}")
    return scores
