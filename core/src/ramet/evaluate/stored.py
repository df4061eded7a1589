"""The results of an evaluation on disk, finished or still running, for those who only read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ramet.evaluate.files import check_tasks, read_results, read_rollouts
from ramet.evaluate.partial import TaskLines
from ramet.rollout.record import GroupRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvaluation:
    """`body` is the content of a results file; of a running evaluation what it would hold if it ended now."""

    out: Path  # the results file
    body: Mapping[str, Any]
    running: TaskLines | None = None

    @property
    def is_finished(self) -> bool:
        return self.running is None

    def records(self) -> Iterator[tuple[str, GroupRecord]]:
        """Benchmark and rollouts of the tasks, in the order of the results. Raises `ConfigError` where they are not
        there, or belong to other results.
        """
        if self.running is None:
            yield from read_rollouts(self.out, self.body)
            return
        for key in ((result["name"], task["task"]) for result in self.body["results"] for task in result["tasks"]):
            _, record = self.running.of(key)
            if record is not None:
                yield key[0], record


def result_files(run: Path, section: Mapping[str, Any]) -> list[Path]:
    """Paths where the results of a run directory may be: `run.out`, then the directory. `section`: its keys `run.…`.

    A relative `run.out` is below the folder that the job was started in, which a relative `run.root` gives.
    """
    named, root, folder = section.get("out"), section.get("root"), run.resolve()
    own = [run / "results.json"]
    if not isinstance(named, str):
        return own
    is_relative = isinstance(root, str) and not Path(root).is_absolute()
    started_in = next((up for up in folder.parents if is_relative and up / str(root) == folder.parent), Path())
    return [started_in / named, *own]


def stored_evaluation(out: Path) -> StoredEvaluation | None:
    """Return the evaluation at `out`, finished or not; None: there is none. Raises `ConfigError` for a broken file."""
    running = TaskLines(out)
    try:
        header = running.read()
    except FileNotFoundError:
        if not out.exists():
            return None
        body = read_results(out)
        check_tasks(out, body)
        return StoredEvaluation(out=out, body=body)
    begun = {name for name, _ in running.tasks}
    results = [running.measured(header, name) for name in header["benchmarks"] if name in begun]
    whole = [
        replace(result, tasks=tuple(running.of((result.name, task.task))[0] for task in result.tasks))
        for result in results
    ]
    body = {**header, "rollouts": None, "results": [result.body() for result in whole]}
    return StoredEvaluation(out=out, body=body, running=running)
