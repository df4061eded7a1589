"""Data files become tasks. Every bad row is found, with file, row, column and value; alike ones are reported together.

A row has `prompt` (a text, or a list of chat messages), `answer` (a text, a number, or a list of them; in published
files `reward_model.ground_truth`), and optionally `data_source` (the file's stem if absent) and `tools`. `data.columns`
renames them; a dot reaches into nested columns. All other columns become the task's metadata.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ramet.config.schema import OnBadRow
from ramet.data.benchmarks import Build, is_benchmark, read_benchmark
from ramet.data.files import find_files, read_rows
from ramet.data.layout import ABSENT, FLAT_ANSWER, PUBLISHED_ANSWER, Columns, repair, value_at
from ramet.data.row_problems import RowProblem, grouped
from ramet.data.rows import BadRow, make_task
from ramet.errors import ConfigError, raise_all
from ramet.hub import cached_name
from ramet.io.json_rows import DataRow
from ramet.io.json_values import cut
from ramet.types import Task

logger = logging.getLogger(__name__)
SHOWN = 20  # problems in one report
CheckTask = Callable[[Task], str | None]  # why it is of no use


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """Tasks of some files and benchmarks, in order."""

    tasks: list[Task]
    fingerprint: str  # sha256 over all tasks; a resumed run must find the same
    skipped: int  # bad rows that were left out
    repaired: int  # rows among the tasks with a corrupted `\boxed` that was repaired
    files: list[str]  # and benchmarks, as `benchmark:NAME/SPLIT`
    benchmarks: Mapping[str, str]  # id of a task -> name of the benchmark that it comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRow:
    """One row of a file and what became of it."""

    row: DataRow  # repaired
    location: str  # file and row, for messages
    task: Task | None
    problem: RowProblem | None  # why the row is not a task
    repaired: bool


@dataclass(slots=True)
class _Collected:
    tasks: list[Task] = field(default_factory=list)
    locations: list[str] = field(default_factory=list)  # of each task
    bad: list[RowProblem] = field(default_factory=list)
    rows: int = 0
    repaired: int = 0
    benchmarks: dict[str, str] = field(default_factory=dict)  # by id of the task


def load_tasks(
    paths: Sequence[str],
    columns: Columns | None = None,
    *,
    limit: int | None = None,
    on_bad_row: OnBadRow = OnBadRow.ERROR,
    build: Build | None = None,
    shares: Mapping[str, int] | None = None,
    check: CheckTask | None = None,
    check_benchmarks: bool = True,
) -> TaskSet:
    """Read the tasks of these files and patterns, then of benchmarks (`benchmark:NAME/SPLIT`; `build` builds them), the
    first `limit` of all. `shares`: how many of a benchmark, an even share of its data sources. Raises `ConfigErrors`.

    `check`: what makes a row bad although it is a task, as a gold answer that its reward cannot read. Tasks of
    benchmarks that judge them are skipped without `check_benchmarks`.
    """
    columns = columns or Columns()
    benchmarks = [path for path in paths if is_benchmark(path)]
    files, problems = find_files([path for path in paths if not is_benchmark(path)])
    collected = _Collected()
    for path, prefix in zip(files, id_prefixes(files), strict=True):
        n_left = None if limit is None else limit - len(collected.tasks)
        if n_left is None or n_left > 0:
            problems += _collect(path, prefix, columns, n_left, collected, check)
    problems += _collect_benchmarks(benchmarks, build, limit, shares, collected, check if check_benchmarks else None)
    problems += _duplicates(collected)
    if on_bad_row == OnBadRow.ERROR:
        problems += grouped(collected.bad)
    elif collected.bad:
        logger.warning("skipped %d of %d rows, the first: %s", len(collected.bad), collected.rows, collected.bad[0])
    raise_all(_shortened(problems))
    if not collected.tasks:
        raise ConfigError(
            f"no tasks in {', '.join(map(str, paths)) or 'no files'}: {collected.rows} rows, {len(collected.bad)} bad"
        )
    if collected.repaired:
        logger.warning("repaired a corrupted \\boxed in %d of %d tasks", collected.repaired, len(collected.tasks))
    return TaskSet(
        tasks=collected.tasks,
        fingerprint=fingerprint(collected.tasks),
        skipped=len(collected.bad),
        repaired=collected.repaired,
        files=[*(str(cached_name(file) or file) for file in files), *benchmarks],
        benchmarks=collected.benchmarks,
    )


def fingerprint(tasks: Iterable[Task]) -> str:
    """sha256 over everything in the tasks, in order."""
    digest = hashlib.sha256()
    for task in tasks:
        values = dataclasses.asdict(task)
        if task.schemas is None:
            del values["schemas"]  # data sets without them keep the fingerprint that they have always had
        digest.update(json.dumps(values, sort_keys=True, default=dict).encode() + b"\n")
    return digest.hexdigest()


def id_prefixes(files: Sequence[Path]) -> list[str]:
    """Beginning of the ids of a file's tasks: its stem, or its path where two files have the same stem. For a file in
    the hub's cache it is its name, which is the same on every machine.
    """
    stems = Counter(path.stem for path in files)
    return [path.stem if stems[path.stem] == 1 else str(cached_name(path) or path.with_suffix("")) for path in files]


def read_tasks(path: Path, prefix: str, columns: Columns) -> Iterator[ReadRow]:
    """Every row of a file, good or bad. Raises `ConfigError` for a file that cannot be read at all."""
    for raw in read_rows(path):
        values = repair(raw.values)
        row = dataclasses.replace(raw, values=values)
        task = problem = None
        try:
            task = make_task(row, prefix, path.stem, columns)
        except BadRow as error:
            problem = RowProblem(file=str(path), row=row.number, reason=str(error))
        yield ReadRow(
            row=row,
            location=f"{path}, row {row.number}",
            task=task,
            problem=problem,
            repaired=values is not raw.values,
        )


def _collect(
    path: Path, prefix: str, columns: Columns, limit: int | None, collected: _Collected, check: CheckTask | None
) -> list[str]:
    """Add the file's tasks and bad rows. Returns problems of the complete file."""
    rows: list[DataRow] = []
    good = 0
    bad: list[RowProblem] = []
    try:
        for read in read_tasks(path, prefix, columns):
            if good == limit:
                break
            rows.append(read.row)
            problem = read.problem
            if read.task is not None and check is not None and (reason := check(read.task)) is not None:
                problem = RowProblem(file=str(path), row=read.row.number, reason=reason)
            if problem is not None:
                bad.append(problem)
            if read.task is None or problem is not None:
                continue
            good += 1
            collected.tasks.append(read.task)
            collected.locations.append(read.location)
            collected.repaired += read.repaired
    except ConfigError as error:
        return [str(error)]
    collected.rows += len(rows)
    missing = missing_columns(path, rows, columns)
    collected.bad += [] if missing else bad  # a column that no row has would be reported once a row
    return missing


def _collect_benchmarks(
    sources: Sequence[str],
    build: Build | None,
    limit: int | None,
    shares: Mapping[str, int] | None,
    collected: _Collected,
    check: CheckTask | None,
) -> list[str]:
    """Add the tasks of benchmarks, and the findings of `check` as bad rows. Returns problems of benchmarks."""
    problems = []
    for source in sources:
        n_left = None if limit is None else limit - len(collected.tasks)
        if n_left is not None and n_left <= 0:
            break
        try:
            if build is None:
                raise ConfigError(f"{source}: benchmarks cannot be read here; name files")
            name, tasks = read_benchmark(source, build, n_left, shares)
        except ConfigError as error:
            problems.append(str(error))
            continue
        for number, task in enumerate(tasks, start=1):
            if check is not None and (reason := check(task)) is not None:
                collected.bad.append(RowProblem(file=source, row=number, reason=reason))
                continue
            collected.tasks.append(task)
            collected.locations.append(f"{source}, task {number}")
            collected.benchmarks[task.id] = name
        collected.rows += len(tasks)
    return problems


def missing_columns(path: Path, rows: Sequence[DataRow], columns: Columns) -> list[str]:
    """Columns that must be there and that no row has."""
    readable = [row.values for row in rows if row.problem is None]
    if not readable:
        return []
    present = ", ".join(dict.fromkeys(name for values in readable for name in values))
    return [
        f"{path}: no column {' or '.join(map(repr, names))}; found {present}; name it with data.columns.{key}"
        for key, names in _expected(columns).items()
        if all(value_at(values, name) is ABSENT for values in readable for name in names)
    ]


def _expected(columns: Columns) -> dict[str, list[str]]:
    """Columns of which one must be there: prompt, answer, and optional ones that the user named."""
    defaults = Columns()
    named = {key: getattr(columns, key) for key in ("id", "data_source", "tools", "difficulty")}
    optional = {key: [name] for key, name in named.items() if name is not None and name != getattr(defaults, key)}
    answers = [FLAT_ANSWER, PUBLISHED_ANSWER] if columns.answer is None else [columns.answer]
    return {"prompt": [columns.prompt], "answer": answers, **optional}


def _duplicates(collected: _Collected) -> list[str]:
    first: dict[str, str] = {}
    problems = []
    for task, location in zip(collected.tasks, collected.locations, strict=True):
        if task.id in first:
            problems.append(f"{location}: id {cut(task.id)} is taken by {first[task.id]}; ids must be unique")
        first.setdefault(task.id, location)
    return problems


def _shortened(problems: list[str]) -> list[str]:
    more = len(problems) - SHOWN
    return [*problems[:SHOWN], f"and {more} more problems with the data"] if more > 0 else problems
