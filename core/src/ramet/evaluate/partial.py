"""An evaluation in progress, and how a later process continues it.

An evaluation appends a JSON line for each finished task to `<out>.partial.jsonl`, whose first line states what is being
measured. A killed evaluation continues after the last complete line; one with other settings is refused. Rollouts that
were masked are run again, and rollouts that were not judged are judged as they were recorded. At the end the lines
become the files of a finished evaluation (`ramet.evaluate.files`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.files import check_tasks, read_results, read_rollouts, read_summary, write_results
from ramet.evaluate.header import CHANGES, Differences, Header, differences
from ramet.evaluate.lines import HEADER, ResumableLines
from ramet.evaluate.results import BenchmarkResult, Results, measured
from ramet.evaluate.statistics import powers_of_two
from ramet.evaluate.tasks import TaskResult
from ramet.io.json_values import as_object
from ramet.rollout.record import GroupRecord, record_body, record_of
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.types import Group

logger = logging.getLogger(__name__)
PARTIAL = ".partial.jsonl"  # after the name of the results file
RECORD = "record"  # in a line, after the fields of the `TaskResult`: its new rollouts, if they were recorded
Key = tuple[str, str]  # benchmark, task


class TaskLines:
    """The partial file. Texts and records stay in it; scores and counts are in memory.

    A later line of a task has its complete result, and the record of the rollouts since the line before.
    """

    def __init__(self, out: Path) -> None:
        self.lines = ResumableLines(out.with_name(out.name + PARTIAL))
        self.tasks: dict[Key, TaskResult] = {}  # without their texts
        self.recorded: dict[Key, set[int]] = {}  # numbers of the rollouts whose records are there
        self._places: dict[Key, list[int]] = {}

    def read(self) -> dict[str, Any]:
        """Read the file and return its header. Raises `ConfigError` if it cannot be read."""
        header: dict[str, Any] = {}
        try:
            for place, body in self.lines.read():
                if HEADER in body:
                    header = body
                else:
                    record = body.pop(RECORD, None) or {"rollouts": []}
                    self._keep(
                        TaskResult.from_body(body), {int(rollout["id"]) for rollout in record["rollouts"]}, place
                    )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{self.lines.path}: not a readable file of an unfinished evaluation: {error}") from error
        if not header:
            raise ConfigError(f"{self.lines.path}: not a readable file of an unfinished evaluation: no header")
        return header

    def add(self, result: TaskResult, record: GroupRecord | None) -> None:
        ids = set() if record is None else {int(scored_rollout.rollout.id) for scored_rollout in record.group.rollouts}
        body = as_object(result) if record is None else {**as_object(result), RECORD: record_body(record)}
        self._keep(result, ids, self.lines.append(body))

    def of(self, key: Key) -> tuple[TaskResult, GroupRecord | None]:
        """A task with its texts, and the record of its rollouts: later ones instead of those with the same numbers."""
        bodies = [self.lines.at(place) for place in self._places[key]]
        record_bodies = [body.pop(RECORD, None) for body in bodies]
        records = [
            record_of(stored, f"{self.lines.path}, task {key[1]}") for stored in record_bodies if stored is not None
        ]
        return TaskResult.from_body(bodies[-1]), _merged(records)

    def measured(self, header: Mapping[str, Any], name: str) -> BenchmarkResult:
        """The statistics of the tasks of one benchmark."""
        tasks = [result for (benchmark, _), result in self.tasks.items() if benchmark == name]
        metrics = header["benchmarks"][name]["metrics"]
        return measured(name, tasks, metrics, k=header["k"], pass_at=header.get("pass_at", ()))

    def _keep(self, result: TaskResult, recorded: set[int], place: int) -> None:
        key = result.benchmark, result.task
        self.tasks[key] = result.without_texts()
        self.recorded.setdefault(key, set()).update(recorded)
        self._places.setdefault(key, []).append(place)


class PartialResults:
    """An evaluation in progress. Opening it takes over what an earlier process left, finished results included if some
    of their rollouts are missing.

    Raises `ConfigError` if that was another model, other settings, benchmarks or plugins. `allow` lets changes pass
    that may alter the numbers; they are logged and recorded.
    """

    def __init__(self, out: Path, header: Header, *, allow: bool = False) -> None:
        self.out = out
        self.header = header
        self._found = TaskLines(out)
        self.path = self._found.lines.path
        if self._found.lines.resume():
            newest = self._found.read()
            self._continue(newest, self.path, allow)
            if self.header.body() != newest:
                self._found.lines.append(self.header.body())
        else:
            earlier = read_results(out) if out.exists() else None
            if earlier is not None:
                check_tasks(out, earlier)
                self._continue(earlier, out, allow)
            self._found.lines.begin(self.header.body(), [] if earlier is None else _lines_of(out, earlier))
            self._found.read()

    def missing(self, benchmark: str, task: str) -> tuple[int, ...]:
        """Numbers of the task's rollouts that have no score: not run, masked, or not judged."""
        result, k = self._found.tasks.get((benchmark, task)), self.header.k
        return tuple(range(k)) if result is None else result.missing(self.header.benchmarks[benchmark].metrics[0], k)

    def to_play(self, benchmark: str, task: str) -> tuple[int, ...]:
        """Return the missing rollouts that are to be run, again or for the first time: all but the `unjudged`."""
        unjudged = self._unjudged(benchmark, task)
        return tuple(number for number in self.missing(benchmark, task) if number not in unjudged)

    def unjudged(self, benchmark: str) -> Iterator[Group]:
        """Yield by task the rollouts that were run and recorded, and not judged."""
        for key in [key for key in self._found.tasks if key[0] == benchmark]:
            if numbers := self._unjudged(*key):
                _, record = self._found.of(key)
                assert record is not None  # it holds these numbers
                rollouts = (
                    scored_rollout.rollout
                    for scored_rollout in record.group.rollouts
                    if int(scored_rollout.rollout.id) in numbers
                )
                yield Group(task=record.group.task, rollouts=tuple(rollouts))

    def add(self, result: TaskResult, record: GroupRecord | None = None) -> None:
        """Keep a finished task, or its rollouts that were missing. It survives a kill when this returns.

        Without the `record` of its rollouts the evaluation cannot be replayed.
        """
        key = result.benchmark, result.task
        if key in self._found.tasks:
            if not {int(rollout.id) for rollout in result.rollouts} <= {*self.missing(*key)}:
                raise ValueError(f"task {result.task!r} of benchmark {result.benchmark!r} was added before")
            result = self._found.of(key)[0].superseded(by=result)
        self._found.add(result, record)

    def results(self) -> Results:
        header = self.header.body()
        benchmarks = tuple(self._found.measured(header, name) for name in self.header.benchmarks)
        return Results(header=self.header, benchmarks=benchmarks)

    def finish(self) -> Results:
        """Write the files of the finished evaluation, remove the partial one and return the results."""
        results = self.results()
        keys = [(benchmark.name, task.task) for benchmark in results.benchmarks for task in benchmark.tasks]
        write_results(self.out, results.body(), map(self._found.of, keys))
        self.path.unlink()
        return results

    def _continue(self, earlier: Mapping[str, Any], path: Path, allow: bool) -> None:
        """Check the header of `earlier`, which is in `path`, and add what changed since then to this one."""
        since = differences(earlier, self.header)
        _refuse(since, f"{path} holds an unfinished evaluation that", allow=allow)
        for text in since.safe:
            logger.info("evaluation continues with a change: %s", text)
        for text in since.risky:
            logger.warning("evaluation continues with a change that may alter the numbers: %s", text)
        changes = [*earlier["settings"].get(CHANGES, []), *since.safe, *since.risky]
        if changes:
            self.header = replace(self.header, settings={**self.header.settings, CHANGES: changes})

    def _unjudged(self, benchmark: str, task: str) -> set[int]:
        """Numbers of the rollouts that ran without a fault, are on disk, and have no score."""
        key = benchmark, task
        if key not in self._found.tasks:
            return set()
        played = {int(rollout.id) for rollout in self._found.tasks[key].rollouts if rollout.masked is None}
        return played & self._found.recorded[key] & {*self.missing(*key)}


def is_finished(out: Path, header: Header, *, allow: bool = False) -> bool:
    """Whether `out` holds the results of this very evaluation, with a score for every rollout and the wanted pass@j.

    Raises `ConfigError` if they are of another one.
    """
    if not out.exists() or out.with_name(out.name + PARTIAL).exists():
        return False
    summary = read_summary(out)
    complete = (
        all(result["n_judged"] == result["n_rollouts"] for result in summary["results"]) and summary["k"] >= header.k
    )
    since = differences(summary, header)
    _refuse(since, f"{out} holds the results of another evaluation, which", allow=allow and not complete)
    wanted = powers_of_two(header.k)
    passes = [
        [pass_at["k"] for pass_at in metric["passes"]] for result in summary["results"] for metric in result["metrics"]
    ]
    return complete and all(ks == wanted for ks in passes)


def _refuse(since: Differences, who: str, *, allow: bool) -> None:
    """Raise `ConfigError` for differences that forbid to continue."""
    forbidding = since.forbidding(allow=allow)
    if not forbidding:
        return
    way = "remove the file or choose another run.out"
    if not since.other:
        way = f"undo that, {way}, or set run.allow_config_change=true"
    raise ConfigError(f"{who} differs in: {', '.join(forbidding)}; {way}")


def _lines_of(out: Path, body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Finished results as lines of a partial file, with the records of their rollouts if those are there."""
    tasks = [task for result in body["results"] for task in result["tasks"]]
    try:
        records = [record for _, record in read_rollouts(out, body)]
    except ConfigError as error:
        logger.warning("%s; what it holds is kept, and the evaluation cannot be replayed", error)
        return tasks
    return [{**task, RECORD: record_body(record)} for task, record in zip(tasks, records, strict=True)]


def _merged(records: Sequence[GroupRecord]) -> GroupRecord | None:
    """The rollouts of one task, the later ones instead of those with the same numbers."""
    if len(records) < 2:
        return records[0] if records else None
    rollouts: dict[str, ScoredRollout] = {
        scored_rollout.rollout.id: scored_rollout for record in records for scored_rollout in record.group.rollouts
    }
    group = ScoredGroup(task=records[0].group.task, rollouts=tuple(rollouts[id] for id in sorted(rollouts, key=int)))
    return replace(records[0], group=group)
