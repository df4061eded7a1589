"""Tasks and rows from files of JSON."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.io.json_rows import UnreadableFile, read_json_rows
from ramet.types import Task, user_prompt


def from_jsonl(
    path: str | Path, *, question: str = "question", answer: str = "answer", limit: int | None = None
) -> Iterator[Task]:
    """Tasks from a file of JSON lines, or of one JSON array. A list of answers stays a list.

    Ids are `<file stem>/<row>`, rows counted from 0. Raises `ConfigError` that names file and row, counted from 1 as
    editors do.
    """
    path = Path(path)
    for number, values in itertools.islice(json_rows(path), limit):
        yield _task(path, number, values, question, answer)


def json_rows(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON lines, or of one JSON array, each with its number, counted from 1 as editors do.

    Raises `ConfigError` that names file and row; for a file that is not there `from` a `FileNotFoundError`.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no file {str(path)!r}") from FileNotFoundError(path)
    try:
        for row in read_json_rows(path):
            if row.problem is not None:
                raise ConfigError(f"{path}, row {row.number}: {row.problem}")
            yield row.number, row.values
    except UnreadableFile as error:
        raise ConfigError(f"{path}: {error}") from error


def _task(path: Path, number: int, values: Mapping[str, Any], question: str, answer: str) -> Task:
    where = f"{path}, row {number}"
    for key in (question, answer):
        if values.get(key) is None:
            raise ConfigError(f"{where}: no key {key!r} (or null); found {', '.join(values) or 'nothing'}")
    gold = values[answer]
    answers = tuple(str(a) for a in gold) if isinstance(gold, list) else (str(gold),)
    return Task(
        id=f"{path.stem}/{number - 1}",
        prompt=user_prompt(str(values[question])),
        answer=answers,
        data_source=path.stem,
    )
