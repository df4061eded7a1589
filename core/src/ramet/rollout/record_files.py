"""The records in the folder of a run: of each step, and of each validation. A step is one file or a folder of parts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.io.atomic import remove_folder, sync, write_file
from ramet.rollout.record import INDEX, SCHEMA

FOLDER = "rollouts"  # of a run
NAME = re.compile(r"(step|valid)_(\d+)(\.jsonl(\.\w+)?)?")


@dataclass(frozen=True, slots=True, order=True)
class RecordedFile:
    """The record of a step (`step`), or of the validation of its weights (`valid`); in that order."""

    step: int
    kind: str
    path: Path  # a file, or a folder of parts

    @property
    def n_bytes(self) -> int:
        files = self.path.iterdir() if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files)


def recorded_files(run: Path) -> list[RecordedFile]:
    """Return the records of a run, in order."""
    matched = ((NAME.fullmatch(path.name), path) for path in (run / FOLDER).glob("*"))
    return sorted(
        RecordedFile(int(match[2]), match[1], path)
        for match, path in matched
        if match and (match[3] or (path / INDEX).is_file())  # parts without an index are no record
    )


def write_index(folder: Path, parts: Sequence[int]) -> None:
    """Write the index of a folder of parts: for each group of the step, in order, the number of its part."""
    write_file(folder / INDEX, json.dumps({"schema": SCHEMA, "parts": list(parts)}) + "\n")


def publish_parts(folder: Path, path: Path) -> None:
    """Rename a complete folder of parts to `path`. A record of the step that is there, in either form, is replaced."""
    for torn in folder.glob(".*.tmp"):  # of a worker that was late
        torn.unlink(missing_ok=True)
    path.with_name(f"{path.name}.jsonl.gz").unlink(missing_ok=True)
    remove_parts(path)
    folder.rename(path)
    sync(path.parent)


def remove_parts(path: Path) -> None:
    """Remove a record in parts, which a run with `cluster=ray` may have left."""
    if path.is_dir():
        remove_folder(path)
