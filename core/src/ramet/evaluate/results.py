"""The results file of an evaluation: everything that a reader needs to believe or to repeat a number.

An evaluation appends one JSON line per finished task to `<out>.partial.jsonl`, whose first line states what is being
measured. A killed evaluation goes on behind the last whole line; one with other settings is refused. At the end the
lines are merged into `<out>`, at once or not at all.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.statistics import MetricSummary, summarise
from ramet.evaluate.tasks import TaskResult, ToolStatistics, scores_of, tool_statistics
from ramet.types import BenchmarkInfo

logger = logging.getLogger(__name__)
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What is measured and with what. Two headers that differ never share a file."""

    model: str
    k: int  # rollouts per task
    settings: Mapping[str, Any]  # temperature, limits, seed, system prompt, tools: JSON
    benchmarks: Mapping[str, BenchmarkInfo]
    versions: Mapping[str, str]  # package -> version
    plugins: list[Mapping[str, Any]]  # the table of `ramet plugins --json`

    def body(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **_plain(asdict(self))}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """One benchmark. The first metric is the main one."""

    name: str
    metrics: tuple[MetricSummary, ...]
    tools: ToolStatistics
    tasks: tuple[TaskResult, ...]
    n_rollouts: int
    n_judged: int  # rollouts with a score in the main metric

    @property
    def judged(self) -> str:
        return f"{self.n_judged} of {self.n_rollouts} judged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    header: Header
    benchmarks: tuple[BenchmarkResult, ...] = field(default=())

    def body(self) -> dict[str, Any]:
        """As it stands in the file."""
        measured = [{**asdict(b), "judged": b.judged} for b in self.benchmarks]
        return {**self.header.body(), "results": _plain(measured)}


class PartialResults:
    """An evaluation under way. Opening it takes over what an earlier process left.

    Raises `ConfigError` if that was another model, other settings, benchmarks or plugins.
    """

    def __init__(self, out: Path, header: Header) -> None:
        self.out = out
        self.path = out.with_name(out.name + ".partial.jsonl")
        self.header = header
        self._tasks: dict[tuple[str, str], TaskResult] = {}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = _whole_lines(self.path)
        if lines:
            self._check(json.loads(lines[0]))
            self._tasks = {(r.benchmark, r.task): r for r in map(TaskResult.from_line, lines[1:])}
            logger.info("%s: resumed with %d finished tasks", self.path, len(self._tasks))
        else:
            self._append(json.dumps(header.body()))

    def done(self, benchmark: str) -> set[str]:
        """Ids of the tasks that are finished."""
        return {task for name, task in self._tasks if name == benchmark}

    def add(self, result: TaskResult) -> None:
        """Keep a finished task; it is on disk when this returns."""
        if (result.benchmark, result.task) in self._tasks:
            raise ValueError(f"task {result.task!r} of benchmark {result.benchmark!r} was added before")
        self._append(result.line())
        self._tasks[result.benchmark, result.task] = result

    def finish(self) -> Results:
        """Write the results file, remove the partial one and return the results."""
        results = Results(header=self.header, benchmarks=tuple(self._measured(name) for name in self.header.benchmarks))
        temporary = self.out.with_name(f".{self.out.name}.tmp")
        with temporary.open("w", encoding="ascii") as file:
            json.dump(results.body(), file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.out)
        self.path.unlink()
        return results

    def _measured(self, name: str) -> BenchmarkResult:
        found = (result for (benchmark, _), result in self._tasks.items() if benchmark == name)
        tasks = tuple(sorted(found, key=lambda result: result.task))  # they finish in any order
        names = self.header.benchmarks[name].metrics
        metrics = tuple(summarise(metric, scores_of(tasks, metric), k=self.header.k) for metric in names)
        return BenchmarkResult(
            name=name,
            metrics=metrics,
            tools=tool_statistics(tasks),
            tasks=tasks,
            n_rollouts=metrics[0].n_rollouts,
            n_judged=metrics[0].n_judged,
        )

    def _check(self, found: Mapping[str, Any]) -> None:
        differing = sorted(_differing(found, self.header.body()))
        if differing:
            raise ConfigError(
                f"{self.path} holds an unfinished evaluation that differs in: {', '.join(differing)}; remove the file "
                "or choose another evaluate.out"
            )

    def _append(self, line: str) -> None:
        with self.path.open("a", encoding="ascii") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())


def is_finished(out: Path, header: Header) -> bool:
    """Whether `out` already holds the results of this very evaluation. Raises `ConfigError` if of another one."""
    if not out.exists():
        return False
    found = read_results(out)
    wanted = header.body()
    differing = sorted(_differing({key: found.get(key) for key in wanted}, wanted))
    if differing:
        raise ConfigError(
            f"{out} holds the results of another evaluation, which differs in: {', '.join(differing)}; remove the file "
            "or choose another evaluate.out"
        )
    return True


def read_results(path: Path) -> dict[str, Any]:
    """A finished results file. Raises `ConfigError` if it is missing, broken or of another schema."""
    try:
        body = json.loads(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a readable results file: {error}") from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        raise ConfigError(f"{path}: not a results file of schema {SCHEMA}")
    return body


def _differing(found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of what differs, as deep as both hold objects."""
    for key in {*found, *wanted}:
        one, other = found.get(key), wanted.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differing(one, other, f"{prefix}{key}.")
        elif one != other:
            yield f"{prefix}{key}"


def _whole_lines(path: Path) -> list[str]:
    """All whole lines; a torn last one is cut off the file and reported: its task is measured again."""
    data = path.read_bytes() if path.exists() else b""
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        logger.warning("%s: dropped a torn last line of %d bytes", path, len(data) - whole)
        with path.open("r+b") as file:
            file.truncate(whole)
    return data[:whole].decode("ascii").splitlines()


def _plain(value: Any) -> Any:
    """What JSON gives back: tuples as lists, enumerations as strings."""
    return json.loads(json.dumps(value, allow_nan=False))
