"""The results of an evaluation on disk, finished or still running, for those who only read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.header import plain
from ramet.evaluate.partial import BEGINNING, PARTIAL
from ramet.evaluate.results import check_tasks, measured, read_results
from ramet.evaluate.rollouts_file import RECORD, LinesOfTasks, read_rollouts
from ramet.evaluate.tasks import TaskResult
from ramet.rollout.record import GroupRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvaluation:
    """`body` is the content of a results file; of a running evaluation what it would hold if it ended now."""

    out: Path  # the results file
    body: Mapping[str, Any]
    lines: LinesOfTasks | None = None  # of a running evaluation

    @property
    def is_finished(self) -> bool:
        return self.lines is None

    def records(self) -> Iterator[tuple[str, GroupRecord]]:
        """Benchmark and rollouts of the tasks, in the order of the results. Raises `ConfigError` where they are not
        there, or not those of the results.
        """
        if self.lines is None:
            yield from read_rollouts(self.out, self.body)
            return
        for one in self.body["results"]:
            for record in self.lines.records((one["name"], task["task"]) for task in one["tasks"]):
                yield one["name"], record


def stored_evaluation(out: Path) -> StoredEvaluation | None:
    """What is at the results file `out`, or on its way there; None: nothing. Raises `ConfigError` for a broken file."""
    try:
        return _running(out)
    except FileNotFoundError:
        if not out.exists():
            return None
        body = read_results(out)
        check_tasks(out, body)
        return StoredEvaluation(out=out, body=body)


def _running(out: Path) -> StoredEvaluation:
    """Only whole lines count: a process may be writing the last one."""
    path = out.with_name(out.name + PARTIAL)
    header: dict[str, Any] | None = None
    lines, tasks, start = LinesOfTasks(path), dict[tuple[str, str], TaskResult](), 0
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                body = json.loads(line)
                if line.startswith(BEGINNING):
                    header = body
                else:
                    body.pop(RECORD, None)
                    task = TaskResult.from_body(body)
                    tasks[task.benchmark, task.task] = task
                    lines.add((task.benchmark, task.task), start, len(line) - 1)  # without its end
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ConfigError(f"{path}: not a readable file of an unfinished evaluation: {error}") from error
            start += len(line)
    if header is None:
        raise ConfigError(f"{path}: not a readable file of an unfinished evaluation: no header")
    return StoredEvaluation(out=out, body={**header, "rollouts": None, "results": _results(header, tasks)}, lines=lines)


def _results(header: Mapping[str, Any], tasks: Mapping[tuple[str, str], TaskResult]) -> list[dict[str, Any]]:
    """Of the benchmarks of which a task is finished."""
    found = []
    for name, info in header["benchmarks"].items():
        own = [task for (benchmark, _), task in tasks.items() if benchmark == name]
        if own:
            one = measured(name, own, info["metrics"], k=header["k"], pass_at=header["pass_at"])
            found.append(plain({**asdict(one), "judged": one.judged}))
    return found
