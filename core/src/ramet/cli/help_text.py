"""Layout of help: entries of two columns, wrapped at the width of the terminal."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable

WIDEST, NARROWEST = 100, 80  # columns


def columns() -> int:
    """Return the width of lines: the terminal's, from 80 to 100; 100 where the output is not a terminal."""
    if not sys.stdout.isatty():
        return WIDEST
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))


def entry(left: str, text: str, *, width: int, column: int, indent: int = 2) -> list[str]:
    """Return the lines of one entry: `left`, and from `column` on its text. A long `left` has lines of its own."""
    first, *rest = _wrap(" " * indent + left, width, " " * (indent + 2))
    body = _wrap(text, width - column, "") if text else []
    if body and not rest and len(first) + 2 <= column:
        first = f"{first:{column}}{body.pop(0)}"
    return [first, *rest, *(" " * column + line for line in body)]


def paragraph(text: str, *, width: int, indent: int = 0) -> list[str]:
    """Return the lines of a text."""
    return _wrap(" " * indent + text, width, " " * indent)


def listing(label: str, names: Iterable[str], *, width: int, most: int, rest: str) -> list[str]:
    """Return `label` and names on at most `most` lines; where they are more, `rest` ends the last one."""
    names = list(names)
    for n in range(len(names), -1, -1):
        text = ", ".join(names[:n] if n == len(names) else [*names[:n], f"… ({len(names)}; {rest})"])
        lines = _wrap(label + text, width, " " * len(label))
        if len(lines) <= most:
            return lines
    return _wrap(f"{label}{len(names)}: {rest}", width, " " * len(label))


def _wrap(text: str, width: int, further: str) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=further, break_long_words=True, break_on_hyphens=False, drop_whitespace=True
    ) or [text]
