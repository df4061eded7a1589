"""Statistics of a data file of tasks: schema, sources, lengths, duplicates, repaired and bad rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramet.data.layout import ABSENT, Columns, answer_column, value_at
from ramet.data.row_problems import RowProblem
from ramet.data.tasks import id_prefixes, missing_columns, read_tasks
from ramet.errors import ConfigError
from ramet.io.json_rows import DataRow
from ramet.io.json_values import cut
from ramet.types import Task

DESCRIBED = "those that the row describes"
MAX_FIELDS = 40  # of one struct; more would fill the screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of prompts, in the unit that they were counted in."""

    least: int
    median: int
    p95: int
    p99: int
    most: int
    mean: float


@dataclass(slots=True, kw_only=True)
class Inspection:
    """One data file. Rows are numbered from 1; of a file of JSON lines these are its lines."""

    path: Path
    rows: int = 0
    tasks: list[Task] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # of the complete file
    bad: list[RowProblem] = field(default_factory=list)
    taken: list[RowProblem] = field(default_factory=list)  # rows whose id an earlier row has
    repaired: int = 0  # rows
    columns: dict[str, Counter[str]] = field(default_factory=dict)  # column -> type -> rows
    answers: Counter[str] = field(default_factory=Counter)  # column that the answer is taken from -> rows
    prompts: dict[Any, list[int]] = field(default_factory=dict)  # prompt -> rows that have it

    @property
    def sources(self) -> Counter[str]:
        return Counter(task.data_source for task in self.tasks)

    @property
    def tools(self) -> Counter[tuple[str, ...] | str | None]:
        """The tools that the tasks allow; None: all that are configured; a text: those that rows describe."""
        return Counter(task.tools if task.schemas is None else DESCRIBED for task in self.tasks)

    @property
    def duplicates(self) -> list[list[int]]:
        """Rows of one prompt, for each prompt that several have."""
        return [rows for rows in self.prompts.values() if len(rows) > 1]


def inspect_files(files: Sequence[Path], columns: Columns) -> list[Inspection]:
    """Read all rows of each file. One that cannot be read to its end has that among its problems."""
    return [_inspect(path, prefix, columns) for path, prefix in zip(files, id_prefixes(files), strict=True)]


def _inspect(path: Path, prefix: str, columns: Columns) -> Inspection:
    inspection, rows = Inspection(path=path), list[DataRow]()
    first: dict[str, int] = {}  # id -> row
    try:
        for read in read_tasks(path, prefix, columns):
            rows.append(read.row)
            inspection.repaired += read.repaired
            _note_columns(inspection, read.row, columns)
            if read.problem is not None:
                inspection.bad.append(read.problem)
            if read.task is not None:
                _note_task(inspection, read.row.number, read.task, first)
    except ConfigError as error:
        inspection.problems.append(str(error))
    inspection.rows = len(rows)
    inspection.problems += [f"{path}: has no rows"] if not (rows or inspection.problems) else []
    inspection.problems += missing_columns(path, rows, columns)
    return inspection


def _note_columns(inspection: Inspection, row: DataRow, columns: Columns) -> None:
    if row.problem is not None:
        return
    if value_at(row.values, column := answer_column(row.values, columns)) is not ABSENT:
        inspection.answers[column] += 1
    for name, value in row.values.items():
        inspection.columns.setdefault(name, Counter())[type_of(value)] += 1


def _note_task(inspection: Inspection, row: int, task: Task, first: dict[str, int]) -> None:
    inspection.tasks.append(task)
    inspection.prompts.setdefault(task.prompt, []).append(row)
    if task.id in first:
        reason = f"id {cut(task.id)} is taken by row {first[task.id]}; ids must be unique"
        inspection.taken.append(RowProblem(file=str(inspection.path), row=row, reason=reason))
    first.setdefault(task.id, row)


def type_of(value: Any) -> str:
    """`text`, `whole number`, `list of {content: text, role: text}`, `null` …"""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {type_of(item)}" for key, item in sorted(value.items())[:MAX_FIELDS]) + "}"
    if isinstance(value, list):
        return f"list of {' or '.join(sorted({type_of(item) for item in value})) or 'nothing'}"
    names = {bool: "true or false", int: "whole number", float: "number", str: "text", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def lengths(counts: Sequence[int]) -> Lengths | None:
    """Statistics of the lengths of prompts; None without prompts."""
    ordered = sorted(counts)
    if not ordered:
        return None
    return Lengths(
        least=ordered[0],
        median=_percentile(ordered, 50),
        p95=_percentile(ordered, 95),
        p99=_percentile(ordered, 99),
        most=ordered[-1],
        mean=sum(ordered) / len(ordered),
    )


def _percentile(ordered: Sequence[int], percent: int) -> int:
    """The smallest value that at least `percent` of them do not exceed."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]
