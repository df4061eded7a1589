"""Rows of JSON files: one object on each line, or one array of objects; in UTF-8, with or without a byte order mark.

Every row has its number, so that every problem names its row. Numbers count as editors do, from 1.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from ramet.io.json_values import MAX_NESTING, cut, too_deep

TOO_DEEP = f"nested more than {MAX_NESTING} levels deep"
CHUNK = 4096  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRow:
    """One row as it is in the file. `problem` is why it could not be read; then it has no values."""

    number: int  # from 1: the line of JSON lines, the element of a JSON array, the row of a parquet file
    values: dict[str, Any]
    problem: str | None = None


class UnreadableFile(ValueError):
    """A file whose rows cannot be separated, so none is given: it begins as a JSON array and is not one, or it is one
    JSON object.
    """


class _Constant(str):
    """`NaN`, `Infinity` or `-Infinity`, which Python's reader takes and JSON does not have."""


def read_json_rows(path: Path) -> Iterator[DataRow]:
    """All rows in order, without blank lines. A file whose first character is `[` is one array.

    Raises `UnreadableFile` and `OSError`.
    """
    with path.open("rb") as file:
        is_array = _first_character(file) == b"["
        file.seek(0)
        if is_array:
            yield from _array_rows(file.read())
            return
        for place, row in enumerate(_line_rows(file)):
            if place == 0 and row.problem is not None:
                _refuse_object(path)
            yield row


def _first_character(file: BinaryIO) -> bytes:
    beginning = file.read(len(codecs.BOM_UTF8)).removeprefix(codecs.BOM_UTF8)
    while not beginning.strip() and (chunk := file.read(CHUNK)):
        beginning = chunk
    return beginning.lstrip()[:1]


def _array_rows(raw: bytes) -> Iterator[DataRow]:
    try:
        elements = json.loads(raw.decode("utf-8-sig"), parse_constant=_Constant)
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"not a readable JSON array: not UTF-8 at byte {error.start}") from error
    except ValueError as error:
        raise UnreadableFile(f"not a readable JSON array: {error}") from error
    except RecursionError as error:
        raise UnreadableFile(f"not a readable JSON array: {TOO_DEEP}") from error
    return (_array_row(number, element) for number, element in enumerate(elements, start=1))


def _refuse_object(path: Path) -> None:
    """Raise `UnreadableFile` if the file is one object over several lines, and say where in it rows may be."""
    try:
        content = json.loads(path.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return
    if isinstance(content, dict) and not too_deep(content):  # a first line that is too deep has its own problem
        lists = [name for name, value in content.items() if isinstance(value, list)]
        where = f"; its key {lists[0]!r} may have the rows" if len(lists) == 1 else ""
        raise UnreadableFile(f"one JSON object; rows are one object on each line, or one array of objects{where}")


def _array_row(number: int, element: Any) -> DataRow:
    row = as_row(number, element)
    constant = _constant_in(row.values)
    if constant is not None:
        return DataRow(number=number, values={}, problem=f"not JSON: {constant} is not JSON")
    return row


def _constant_in(value: Any) -> str | None:
    if isinstance(value, dict | list):
        constants = map(_constant_in, value.values() if isinstance(value, dict) else value)
        return next((name for name in constants if name is not None), None)
    return value if isinstance(value, _Constant) else None


def _line_rows(lines: BinaryIO) -> Iterator[DataRow]:
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        if content.strip():
            yield _line_row(number, content)


def _line_row(number: int, line: bytes) -> DataRow:
    try:
        text = line.decode("utf-8").strip()
        values = json.loads(text, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return DataRow(number=number, values={}, problem=f"not UTF-8 at byte {error.start} of the line")
    except RecursionError:
        return DataRow(number=number, values={}, problem=TOO_DEEP)
    except ValueError as error:
        return DataRow(number=number, values={}, problem=f"not JSON: {error}, in {cut(text)}")
    return as_row(number, values)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def as_row(number: int, values: Any) -> DataRow:
    """A row of these values, if they are an object that readers may go through by recursion."""
    if not isinstance(values, dict):
        return DataRow(number=number, values={}, problem=f"not a JSON object: {cut(values)}")
    if too_deep(values):
        return DataRow(number=number, values={}, problem=TOO_DEEP)
    return DataRow(number=number, values=values)
