"""An evaluation in progress, and how a later process goes on with it.

An evaluation appends one JSON line per finished task to `<out>.partial.jsonl`, whose first line states what is being
measured. A killed evaluation goes on after the last whole line; one with other settings is refused. Rollouts that were
masked are played again, those that were not judged are judged again as they were recorded, and a later line of a task
supersedes an earlier one. At the end the lines are merged into `<out>`, at once or not at all.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.header import CHANGES, Differences, Header, differences
from ramet.evaluate.results import BenchmarkResult, Results, measured, read_results
from ramet.evaluate.rollouts_file import (
    RECORD,
    LinesOfTasks,
    line_with_record,
    read_rollouts,
    rollouts_path,
    write_rollouts,
)
from ramet.evaluate.statistics import powers_of_two
from ramet.evaluate.tasks import TaskResult
from ramet.io.atomic import open_atomic, write_file
from ramet.io.json_lines import append_line, cut_torn_end
from ramet.rollout.record import GroupRecord

logger = logging.getLogger(__name__)
PARTIAL = ".partial.jsonl"  # after the name of the results file
SYNC_S = 1.0  # between two waits for the disk
BEGINNING = b'{"schema": '  # of a file of an unfinished evaluation


class PartialResults:
    """An evaluation in progress. Opening it takes over what an earlier process left, finished results included if some
    of their rollouts are missing.

    Raises `ConfigError` if that was another model, other settings, benchmarks or plugins. `allow` lets changes pass
    that may alter the numbers; they are logged and recorded.
    """

    def __init__(self, out: Path, header: Header, *, allow: bool = False) -> None:
        self.out = out
        self.path = out.with_name(out.name + PARTIAL)
        self.header = header
        self._tasks: dict[tuple[str, str], TaskResult] = {}  # without their texts, which are in the file
        self._recorded: dict[tuple[str, str], set[int]] = {}  # numbers of the rollouts of a task that are on disk
        self._lines = LinesOfTasks(self.path)
        self._synced = 0.0  # when a line was last waited for, of the monotonic clock
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if _has_lines(self.path):
            self._take_over(allow)
        elif out.exists():
            body = read_results(out)
            self._go_on(body, self.out, allow)
            results = [json.dumps(task) for task in _tasks_of(body)]
            written = [json.dumps(self.header.body()), *_with_records(out, body, results)]
            write_file(self.path, "".join(f"{line}\n" for line in written))
            self._add_all()
        else:
            append_line(self.path, json.dumps(header.body()))

    def missing(self, benchmark: str, task: str) -> tuple[int, ...]:
        """Numbers of the task's rollouts that have no score: not played, masked, or not judged."""
        found, k = self._tasks.get((benchmark, task)), self.header.k
        return tuple(range(k)) if found is None else found.missing(self._main_metric(benchmark), k)

    def to_play(self, benchmark: str, task: str) -> tuple[int, ...]:
        """Those of the missing ones that are to be played, again or for the first time: all but the `unjudged`."""
        unjudged = self._unjudged(benchmark, task)
        return tuple(number for number in self.missing(benchmark, task) if number not in unjudged)

    def unjudged(self, benchmark: str) -> Iterator[GroupRecord]:
        """By task, the rollouts that were played and recorded, and not judged."""
        for name, task in list(self._tasks):
            numbers = self._unjudged(name, task) if name == benchmark else set()
            for record in self._lines.records([(name, task)]) if numbers else ():
                group = record.group
                left = tuple(one for one in group.rollouts if int(one.rollout.id) in numbers)
                yield replace(record, group=replace(group, rollouts=left))

    def add(self, result: TaskResult, record: GroupRecord | None = None) -> None:
        """Keep a finished task, or those of its rollouts that were missing. It survives a kill when this returns, and
        the end of the machine within `SYNC_S`: waiting for the disk each time would hold all rollouts up.

        Without the `record` of its rollouts the evaluation cannot be replayed.
        """
        key = result.benchmark, result.task
        earlier = self._tasks.get(key)
        if record is not None:
            self._recorded.setdefault(key, set()).update(int(one.rollout.id) for one in record.group.rollouts)
        if earlier is not None:
            if not {int(rollout.id) for rollout in result.rollouts} <= {*self.missing(*key)}:
                raise ValueError(f"task {result.task!r} of benchmark {result.benchmark!r} was added before")
            result = TaskResult.from_body(self._lines.result(key)).superseded(by=result)
        line = result.line() if record is None else line_with_record(result.line(), record)
        now = time.monotonic()
        sync = now >= self._synced + SYNC_S
        start = append_line(self.path, line, sync=sync)
        self._lines.add(key, start, len(line))
        self._synced = now if sync else self._synced
        self._tasks[key] = result.without_texts()

    def results(self) -> Results:
        return Results(header=self.header, benchmarks=tuple(self._measured(name) for name in self.header.benchmarks))

    def finish(self) -> Results:
        """Write the file of rollouts and the results file, remove the partial one and return the results."""
        results = self.results()
        keys = [(one.name, task.task) for one in results.benchmarks for task in one.tasks]
        about = write_rollouts(rollouts_path(self.out), self._lines.lines(keys))
        results = replace(results, rollouts=about)
        with open_atomic(self.out) as file:
            for piece in results.text(map(self._lines.result, keys)):
                file.write(piece.encode("ascii"))
        self.path.unlink()
        return results

    def _measured(self, name: str) -> BenchmarkResult:
        tasks = [result for (benchmark, _), result in self._tasks.items() if benchmark == name]
        header = self.header
        return measured(name, tasks, header.benchmarks[name].metrics, k=header.k, pass_at=header.pass_at)

    def _take_over(self, allow: bool) -> None:
        with self.path.open("rb") as file:
            newest = json.loads([line for line in file if line.startswith(BEGINNING)][-1])
        self._go_on(newest, self.path, allow)
        self._add_all()
        if self.header.body() != newest:
            append_line(self.path, json.dumps(self.header.body()))

    def _go_on(self, found: Mapping[str, Any], path: Path, allow: bool) -> None:
        """Check the header `found` in `path`, and add what changed since then to this one."""
        since = differences(found, self.header)
        _refuse(since, f"{path} holds an unfinished evaluation that", allow=allow)
        for text in since.safe:
            logger.info("evaluation goes on with a change: %s", text)
        for text in since.risky:
            logger.warning("evaluation goes on with a change that may alter the numbers: %s", text)
        changes = [*found["settings"].get(CHANGES, []), *since.safe, *since.risky]
        if changes:
            self.header = replace(self.header, settings={**self.header.settings, CHANGES: changes})

    def _add_all(self) -> None:
        """What the file holds, line by line. A later result of a task supersedes an earlier one."""
        start = 0
        with self.path.open("rb") as file:
            for line in file:
                if not line.startswith(BEGINNING):
                    body = json.loads(line)
                    record = body.pop(RECORD, None) or {"rollouts": []}
                    result = TaskResult.from_body(body)
                    key = result.benchmark, result.task
                    self._tasks[key] = result.without_texts()
                    self._recorded.setdefault(key, set()).update(int(one["id"]) for one in record["rollouts"])
                    self._lines.add(key, start, len(line) - 1)  # without its end
                start += len(line)

    def _unjudged(self, benchmark: str, task: str) -> set[int]:
        """Numbers of the rollouts that were played without a fault, are on disk, and have no score."""
        found = self._tasks.get((benchmark, task))
        played = set() if found is None else {int(one.id) for one in found.rollouts if one.masked is None}
        return played & self._recorded.get((benchmark, task), set()) & {*self.missing(benchmark, task)}

    def _main_metric(self, benchmark: str) -> str:
        return self.header.benchmarks[benchmark].metrics[0]


def is_finished(out: Path, header: Header, *, allow: bool = False) -> bool:
    """Whether `out` holds the results of this very evaluation, with a score for every rollout and the wanted pass@j.

    Raises `ConfigError` if they are of another one.
    """
    if not out.exists() or out.with_name(out.name + PARTIAL).exists():
        return False
    found = read_results(out)
    complete = all(one["n_judged"] == one["n_rollouts"] for one in found["results"]) and found["k"] >= header.k
    since = differences(found, header)
    _refuse(since, f"{out} holds the results of another evaluation, which", allow=allow and not complete)
    wanted = sorted(set(header.pass_at)) or powers_of_two(header.k)
    passes = [[one["k"] for one in metric["passes"]] for result in found["results"] for metric in result["metrics"]]
    return complete and all(found == wanted for found in passes)


def _refuse(since: Differences, who: str, *, allow: bool) -> None:
    """Raise `ConfigError` for differences that forbid to go on."""
    forbidding = since.forbidding(allow=allow)
    if not forbidding:
        return
    way = "remove the file or choose another evaluate.out"
    if not since.other:
        way = f"undo that, {way}, or set run.allow_config_change=true"
    raise ConfigError(f"{who} differs in: {', '.join(forbidding)}; {way}")


def _with_records(out: Path, body: Mapping[str, Any], results: Sequence[str]) -> list[str]:
    """These lines of finished results with the records of their rollouts, if those are there."""
    try:
        records = [record for _, record in read_rollouts(out, body)]
    except ConfigError as error:
        logger.warning("%s; what it holds is kept, and the evaluation cannot be replayed", error)
        return list(results)
    return [line_with_record(line, record) for line, record in zip(results, records, strict=True)]


def _tasks_of(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (task for one in body["results"] for task in one["tasks"])


def _has_lines(path: Path) -> bool:
    """Whether there is a whole line; a torn last one is cut off: its task is measured again.

    Raises `ConfigError` for a file of something else, which is left as it is, and for a link.
    """
    if path.is_symlink() or (path.exists() and not _begins_evaluation(path)):
        raise ConfigError(f"{path} is no unfinished evaluation; choose another evaluate.out")
    return cut_torn_end(path) > 0


def _begins_evaluation(path: Path) -> bool:
    """Also a file that a kill has cut off in its first line."""
    with path.open("rb") as file:
        return BEGINNING.startswith(file.read(len(BEGINNING)))
