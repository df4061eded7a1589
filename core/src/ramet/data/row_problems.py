"""Problems of single rows of data files, and the rows of one reason in one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

SHOWN_ROWS = 3  # of each reason


@dataclass(frozen=True, slots=True, kw_only=True)
class RowProblem:
    """One row and one reason."""

    file: str
    row: int  # from 1, as editors count: the line of a JSON-lines file
    reason: str  # without file and row

    def __str__(self) -> str:
        return f"{self.file}, row {self.row}: {self.reason}"


def grouped(problems: Iterable[RowProblem], shown: int = SHOWN_ROWS) -> list[str]:
    """One line for each reason, in the order in which the reasons appear.

    `a.jsonl, row 3: REASON`, or `a.jsonl, rows 3, 17; b.jsonl, row 2; and 9 more: REASON`.
    """
    by_reason: dict[str, list[RowProblem]] = {}
    for problem in problems:
        by_reason.setdefault(problem.reason, []).append(problem)
    return [f"{rows_in_words(alike, shown)}: {reason}" for reason, alike in by_reason.items()]


def in_row_order(problems: Iterable[RowProblem]) -> list[RowProblem]:
    """Sort by file, then by row; problems of one row keep their order."""
    return sorted(problems, key=lambda problem: (problem.file, problem.row))


def rows_in_words(rows: Sequence[RowProblem], shown: int = SHOWN_ROWS) -> str:
    """`a.jsonl, rows 3, 17; b.jsonl, row 2; and 9 more`."""
    more = [f"and {len(rows) - shown} more"] if len(rows) > shown else []
    return "; ".join([*_of_files(rows[:shown]), *more])


def _of_files(rows: Sequence[RowProblem]) -> Iterator[str]:
    for file, alike in groupby(rows, key=lambda problem: problem.file):
        numbers = [str(problem.row) for problem in alike]
        yield f"{file}, row{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
