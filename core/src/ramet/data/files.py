"""The reader of data files, for every job: parquet, JSON lines and JSON arrays, found by path or pattern.

Tasks, SFT traces and `ramet data inspect` all read through `read_rows`; `io/json_rows.py` has the part that plugins
reach too, by `ramet.json_rows` and `ramet.from_jsonl`.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.io.json_rows import DataRow, UnreadableFile, as_row, read_json_rows
from ramet.io.json_values import cut

PARQUET = ".parquet"
JSON_FILES = (".jsonl", ".ndjson", ".json")
HUB_SET = re.compile(r"[\w.-]+/[\w.-]+(@[^:]+)?(:[^*]*)?")  # OWNER/NAME, perhaps with a split that cannot be read


def find_files(patterns: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The files that paths and glob patterns name, sorted within a pattern, and their problems."""
    files: list[Path] = []
    problems: list[str] = []
    for pattern in patterns:
        path = Path(os.path.expanduser(pattern))  # it stays as it is if the user does not exist
        matches = [path] if path.exists() else [Path(p) for p in sorted(glob.glob(str(path), recursive=True))]
        if not matches:
            problems.append(f"{pattern}: no such file (working directory: {Path.cwd()}){_hub(pattern)}")
        for match in matches:
            problem = _unreadable(match)
            problems += [problem] if problem else []
            files += [] if problem or match in files else [match]
    return files, problems


def _hub(pattern: str) -> str:
    """Say how to name a data set of the hub, where the name of one may be meant."""
    meant = HUB_SET.fullmatch(pattern) is not None and Path(pattern).suffix not in (PARQUET, *JSON_FILES)
    return "; of a set of the hub give OWNER/NAME:SPLIT, or hf://datasets/OWNER/NAME/FILE" if meant else ""


def _unreadable(path: Path) -> str | None:
    if path.is_dir():
        return f"{path}: is a directory; name files or a pattern such as {path}/*.jsonl"
    if path.suffix not in (PARQUET, *JSON_FILES):
        return f"{path}: unknown kind of file {path.suffix!r}; allowed: {', '.join((PARQUET, *JSON_FILES))}"
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
    """Plain lists and dicts, no arrays. Parquet does not check that texts are UTF-8, so a row may have bad ones."""
    try:
        return [as_row(number, values) for number, values in enumerate(batch.to_pylist(), before + 1)]
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
    return as_row(number, values)


def _json_rows(path: Path) -> Iterator[DataRow]:
    try:
        yield from read_json_rows(path)
    except UnreadableFile as error:
        raise ConfigError(f"{path}: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
