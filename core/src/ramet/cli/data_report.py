"""Facts that `ramet data inspect` prints of any file, and the line that sums it up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ramet.data.row_problems import SHOWN_ROWS, RowProblem, grouped
from ramet.io.json_values import visible_lines

SHOWN = 10  # kinds of bad rows, sources, types of a column


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """One file: what is printed of it, and what the last line counts."""

    lines: list[str]
    rows: int
    tasks: int = 0
    conversations: int = 0
    bad_rows: int = 0  # that keep a run from starting
    skip: str = ""  # the setting that leaves them out
    left_out: int = 0  # bad rows
    other_problems: int = 0
    warnings: Sequence[str] = ()  # names of the lines that warn

    @property
    def sound(self) -> bool:
        """Whether a run would take the file."""
        return not (self.bad_rows or self.other_problems)


def summary(reports: Sequence[FileReport]) -> str:
    """One line: what there is, problems by kind, and which lines warn."""
    tasks, conversations = sum(report.tasks for report in reports), sum(report.conversations for report in reports)
    has = [some(tasks, "task")] if tasks or not conversations else []
    has += [some(conversations, "conversation")] if conversations else []
    bad, left_out = sum(report.bad_rows for report in reports), sum(report.left_out for report in reports)
    other = sum(report.other_problems for report in reports)
    skip = " or ".join(dict.fromkeys(report.skip for report in reports if report.bad_rows))
    problems = [f"{some(bad, 'bad row')} (left out with {skip})"] if bad else []
    problems += [some(other, "other problem" if bad else "problem")] if other else []
    warnings = dict.fromkeys(name for report in reports for name in report.warnings)
    parts = [
        f"{some(len(reports), 'file')}, {some(sum(report.rows for report in reports), 'row')}: {', '.join(has)}",
        " and ".join(problems) or "no problems",
        f"{some(left_out, 'bad row')} left out" if left_out else "",
        f"warnings: {', '.join(warnings)}" if warnings else "",
    ]
    return "; ".join(part for part in parts if part)


def line(name: str, text: str) -> str:
    return f"  {name:10}  {' '.join(visible_lines(text))}".rstrip()


def some(count: int, what: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def counted(counts: Counter[str], rows: int) -> str:
    """`text 9, null 1`; of a single one that all rows have, only the name."""
    if len(counts) == 1 and rows == counts.total():
        return next(iter(counts))
    shown = ", ".join(f"{name} {count}" for name, count in counts.most_common(SHOWN))
    return shown + (f", and {len(counts) - SHOWN} others" if len(counts) > SHOWN else "")


def bad_row_lines(problems: Sequence[RowProblem]) -> Iterator[str]:
    """Rows that are bad for one reason are one line."""
    kinds = grouped(problems)
    yield from (line("bad row", text) for text in kinds[:SHOWN])
    if len(kinds) > SHOWN:
        yield line("", f"and {len(kinds) - SHOWN} more kinds of bad rows")


def duplicates_in_words(groups: Sequence[Sequence[int]], what: str) -> str:
    """`groups`: numbers of the rows whose `what` is the same. Empty if there are none."""
    if not groups:
        return ""
    places = "; ".join(f"rows {_numbers(rows)}" for rows in groups[:SHOWN_ROWS])
    more = f"; and {some(len(groups) - SHOWN_ROWS, f'more {what}')}" if len(groups) > SHOWN_ROWS else ""
    repeats = sum(len(rows) - 1 for rows in groups)
    verb = "repeats" if repeats == 1 else "repeat"
    return f"{some(repeats, 'row')} {verb} the {what} of an earlier one: {places}{more}"


def _numbers(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - SHOWN_ROWS} more" if len(rows) > SHOWN_ROWS else ""
    return ", ".join(map(str, rows[:SHOWN_ROWS])) + more
