"""Rows of data files, parquet or JSON lines, each with its number, so that every problem names its row."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ramet.errors import ConfigError
from ramet.io.json_values import MAX_NESTING, too_deep

PARQUET = ".parquet"
TOO_DEEP = f"nested more than {MAX_NESTING} levels deep"
JSON_LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRow:
    """One row as it is in the file. `problem` is why it could not be read; then there are no values."""

    number: int  # from 1: the line of a JSON-lines file
    values: dict[str, Any]
    problem: str | None = None


def find_files(patterns: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The files that paths and glob patterns name, sorted within a pattern, and what is wrong with them."""
    files: list[Path] = []
    problems: list[str] = []
    for pattern in patterns:
        path = Path(pattern).expanduser()
        matches = [path] if path.exists() else [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            problems.append(f"{pattern}: no such file (working directory: {Path.cwd()})")
        for match in matches:
            problem = _unreadable(match)
            problems += [problem] if problem else []
            files += [] if problem or match in files else [match]
    return files, problems


def _unreadable(path: Path) -> str | None:
    if path.is_dir():
        return f"{path}: is a directory; name files or a pattern such as {path}/*.jsonl"
    if path.suffix not in (PARQUET, *JSON_LINES):
        return f"{path}: unknown kind of file {path.suffix!r}; allowed: {', '.join((PARQUET, *JSON_LINES))}"
    if path.stat().st_size == 0:
        return f"{path}: the file is empty"
    return None


def read_rows(path: Path) -> Iterator[DataRow]:
    """All rows in order. Raises `ConfigError` for a file that cannot be read at all."""
    return _parquet_rows(path) if path.suffix == PARQUET else _json_rows(path)


def _parquet_rows(path: Path) -> Iterator[DataRow]:
    import pyarrow  # here, because JSON lines need no pyarrow
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in _batch_rows(batch, number):
                    yield row
                    number = row.number
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path}, after row {number}: not a readable parquet file: {error}") from error


def _batch_rows(batch: Any, before: int) -> list[DataRow]:
    """Plain lists and dicts, no arrays. Parquet does not check that texts are UTF-8, so a row may hold bad ones."""
    try:
        return [_row(number, values) for number, values in enumerate(batch.to_pylist(), before + 1)]
    except UnicodeDecodeError:
        return [_checked_row(batch.slice(index, 1), before + index + 1) for index in range(batch.num_rows)]


def _checked_row(row: Any, number: int) -> DataRow:
    values = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            values[name] = column[0].as_py()
        except UnicodeDecodeError as error:
            return DataRow(
                number=number, values={}, problem=f"column {name} is not UTF-8: {error.reason} in {cut(error.object)}"
            )
    return _row(number, values)


def _json_rows(path: Path) -> Iterator[DataRow]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _json_row(number, line)


def _json_row(number: int, line: bytes) -> DataRow:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        values = json.loads(text, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        return DataRow(number=number, values={}, problem=f"not UTF-8 at byte {error.start} of the line")
    except (ValueError, RecursionError) as error:
        return DataRow(number=number, values={}, problem=f"not JSON: {error}, in {cut(text)}")
    if not isinstance(values, dict):
        return DataRow(number=number, values={}, problem=f"not a JSON object: {cut(values)}")
    return _row(number, values)


def _row(number: int, values: dict[str, Any]) -> DataRow:
    """Whoever reads a row may go through it by recursion."""
    if too_deep(values):
        return DataRow(number=number, values={}, problem=TOO_DEEP)
    return DataRow(number=number, values=values)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def cut(value: Any, limit: int = 80) -> str:
    """A value for a message, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
