"""The rollouts of an evaluation on disk, with prompts, token ids and tool results: what replay and judges read.

During an evaluation each task's record is in the line of its result in the partial file; at its end they become one
file beside the results, in the form of the rollouts of a training step (`ramet.rollout.record`) and in the order of the
results.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.rollout.record import GroupRecord, read_records, record_line, record_of, write_lines
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.types import Group

SUFFIX = ".rollouts.jsonl.gz"
RECORD = "record"  # its key in a line of the partial file
BEFORE = f', "{RECORD}": '.encode("ascii")
RECORD_BEGINS = BEFORE + b'{"schema":'  # its last one: in texts quotes are escaped, and in records is no space


def rollouts_path(out: Path) -> Path:
    """Of the results file `out`."""
    return out.with_name(out.name.removesuffix(".json") + SUFFIX)


def group_record(group: Group, scores: Sequence[Mapping[str, float | None]], metric: str) -> GroupRecord:
    """With the scores of the benchmark; the main one is the reward."""
    scored = tuple(
        ScoredRollout(
            rollout=rollout,
            reward=found.get(metric),
            parts={name: value for name, value in found.items() if value is not None},
        )
        for rollout, found in zip(group.rollouts, scores, strict=True)
    )
    return GroupRecord(step=0, group=ScoredGroup(task=group.task, rollouts=scored))


def line_with_record(line: str, record: GroupRecord) -> str:
    """`line` is a JSON object; the record becomes its last key."""
    return f"{line[:-1]}{BEFORE.decode('ascii')}{record_line(record).decode('ascii').strip()}}}"


class LinesOfTasks:
    """Where in the partial file the lines of each task are, so that their records need not be kept in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[tuple[str, str], list[tuple[int, int]]] = {}

    def add(self, key: tuple[str, str], start: int, length: int) -> None:
        """A line of this benchmark and task, in bytes."""
        self._places.setdefault(key, []).append((start, length))

    def result(self, key: tuple[str, str]) -> dict[str, Any]:
        """The result of this task in its newest line, without its record."""
        with self.path.open("rb") as file:
            start, length = self._places[key][-1]
            file.seek(start)
            body: dict[str, Any] = json.loads(file.read(length))
        body.pop(RECORD, None)
        return body

    def records(self, keys: Iterable[tuple[str, str]]) -> Iterator[GroupRecord]:
        """One per task, in this order; what was played later is in the place of what it supersedes."""
        for key, found in self._found(keys):
            yield self._merged(key, found)

    def lines(self, keys: Iterable[tuple[str, str]]) -> Iterator[bytes]:
        """As `records`, each as `record_line` writes it. Most tasks are played once: they are not read anew."""
        for key, found in self._found(keys):
            yield found[0] if len(found) == 1 else record_line(self._merged(key, found))

    def _found(self, keys: Iterable[tuple[str, str]]) -> Iterator[tuple[tuple[str, str], list[bytes]]]:
        """Of each task, the records of all its lines; tasks without any are left out."""
        with self.path.open("rb") as file:
            for key in keys:
                found = []
                for start, length in self._places[key]:
                    file.seek(start)
                    _, begins, record = file.read(length).rpartition(RECORD_BEGINS)
                    found += [RECORD_BEGINS[len(BEFORE) :] + record[:-1] + b"\n"] if begins else []
                if found:
                    yield key, found

    def _merged(self, key: tuple[str, str], found: Iterable[bytes]) -> GroupRecord:
        return merged([record_of(json.loads(line), f"{self.path}, task {key[1]}") for line in found])


def merged(records: Sequence[GroupRecord]) -> GroupRecord:
    """The rollouts of one task from several attempts, the later ones instead of those with the same numbers."""
    rollouts = {one.rollout.id: one for record in records for one in record.group.rollouts}
    group = ScoredGroup(task=records[0].group.task, rollouts=tuple(rollouts[id] for id in sorted(rollouts, key=int)))
    return replace(records[0], group=group)


def write_rollouts(path: Path, lines: Iterable[bytes]) -> dict[str, Any] | None:
    """Write them all; what the results say of the file. Without any there is no file, and nothing to say."""
    n = 0

    def counted() -> Iterator[bytes]:
        nonlocal n
        for line in lines:
            n += 1
            yield line

    write_lines(path, counted())
    if not n:
        path.unlink()
        return None
    return {"sha256": _sha256(path), "groups": n}


def read_rollouts(out: Path, body: Mapping[str, Any]) -> Iterator[tuple[str, GroupRecord]]:
    """Benchmark and rollouts of every task of the results `body` in `out`, in order.

    Raises `ConfigError` if the file is missing or another one than the results name.
    """
    about, path = body.get("rollouts"), rollouts_path(out)
    keys = [(one["name"], task["task"]) for one in body["results"] for task in one["tasks"]]
    if not about or about["groups"] != len(keys):
        raise ConfigError(f"{out}: its rollouts were not recorded whole, so it cannot be scored again")
    if not path.is_file() or _sha256(path) != about["sha256"]:
        raise ConfigError(
            f"{path}: {'is missing' if not path.is_file() else 'is not the file'}, and {out.name} names it with sha256 "
            f"{about['sha256'][:12]}; the two belong together"
        )
    for (benchmark, task), record in zip(keys, read_records(path), strict=True):
        if record.group.task.id != task:
            raise ConfigError(f"{path}: holds task {record.group.task.id!r} where {out.name} has {task!r}")
        yield benchmark, record


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
