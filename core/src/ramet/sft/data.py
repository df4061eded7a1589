"""SFT files: JSON lines, one sharegpt row per line. Every bad row of every file is reported, together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramet.data.files import TOO_DEEP
from ramet.io.json_values import too_deep
from ramet.sft.rows import Conversation, read_row

MAX_SHOWN = 20  # problems that one message lists; the others are counted


@dataclass(slots=True, kw_only=True)
class SftData:
    """What the files hold. `problems` is empty exactly if training may start."""

    conversations: list[Conversation] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    fingerprint: str = ""  # of the files' bytes in order; a resume must find the same


def read_data(paths: Sequence[str]) -> SftData:
    """Read and validate all files. Raises nothing for bad data: the caller reports it with its other problems."""
    data = SftData()
    digest = hashlib.sha256()
    problems: list[str] = []
    for path in map(Path, paths):
        if not path.is_file():
            data.problems.append(f"sft.data: no file {str(path)!r} (working directory {str(Path.cwd())!r})")
            continue
        before = len(data.conversations) + len(problems)
        for conversation, found in _rows(path, digest):
            problems += found
            if conversation is not None:
                data.conversations.append(conversation)
        if len(data.conversations) + len(problems) == before:
            data.problems.append(f"sft.data: {str(path)!r} has no rows")
    data.problems += _first(problems)
    data.fingerprint = digest.hexdigest()
    return data


def _rows(path: Path, digest: Any) -> Iterator[tuple[Conversation | None, list[str]]]:
    """Rows count from 0; blank lines are no rows."""
    row = 0
    with path.open("rb") as lines:
        for line in lines:
            digest.update(line)
            if not line.strip():
                continue
            yield _decoded(line, f"{path}, row {row}")
            row += 1


def _decoded(line: bytes, where: str) -> tuple[Conversation | None, list[str]]:
    try:
        record = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        return None, [f"{where}: not UTF-8 at byte {error.start} of the line"]
    except (json.JSONDecodeError, RecursionError) as error:
        return None, [f"{where}: not JSON: {error}"]
    if too_deep(record):
        return None, [f"{where}: {TOO_DEEP}"]
    return read_row(record, where)


def _first(problems: list[str]) -> list[str]:
    more = len(problems) - MAX_SHOWN
    return [*problems[:MAX_SHOWN], f"and {more} more problems in the rows of sft.data"] if more > 0 else problems
