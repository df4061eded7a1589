"""The files of a finished evaluation: a summary, and next to it its tasks and rollouts as JSON lines.

`results.json` has everything that a reader needs to believe or to repeat a number. `results.tasks.jsonl` has a line for
each task (`TaskResult`): prompt, answers, scores. `results.rollouts.jsonl.gz` has in the same order the record of its
rollouts (`ramet.rollout.record`), with token ids and tool results: what replay and judges read. The summary names the
hashes of both. Results of schema 1, of earlier versions, have the tasks in the summary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.header import SCHEMAS
from ramet.evaluate.tasks import TaskResult
from ramet.io.atomic import open_atomic, write_file
from ramet.io.json_lines import json_line
from ramet.rollout.record import GroupRecord, read_records, write_records
from ramet.types import Group


def tasks_path(out: Path) -> Path:
    return out.with_name(out.name.removesuffix(".json") + ".tasks.jsonl")


def rollouts_path(out: Path) -> Path:
    return out.with_name(out.name.removesuffix(".json") + ".rollouts.jsonl.gz")


def write_results(
    out: Path, summary: Mapping[str, Any], tasks: Iterable[tuple[TaskResult, GroupRecord | None]]
) -> None:
    """Write the three files, the summary last. The tasks are read one at a time: together they may be larger than the
    memory.
    """
    n = 0
    with open_atomic(tasks_path(out)) as lines:

        def records() -> Iterator[GroupRecord]:
            nonlocal n
            for task, record in tasks:
                lines.write(json_line(task))
                if record is not None:
                    n += 1
                    yield record

        write_records(rollouts_path(out), records())
    hashes = {
        "tasks": {"sha256": _sha256(tasks_path(out))},
        "rollouts": {"sha256": _sha256(rollouts_path(out)), "groups": n},
    }
    write_file(out, json.dumps({**summary, **hashes}, indent=1, allow_nan=False) + "\n")


def load_results(path: Path) -> tuple[Path, dict[str, Any]]:
    """The results file that `path` is or that is in it, or in `runs/PATH`, and its content. Raises `ConfigError`."""
    candidates = [path, path / "results.json", Path("runs") / path / "results.json"]
    for file in candidates:
        if file.is_file():
            return file, read_results(file)
    raise ConfigError(
        f"no results {str(path)!r}: neither a results file, nor a run's directory or name under runs/ with a "
        f"results.json (working directory: {Path.cwd()})"
    )


def read_results(path: Path) -> dict[str, Any]:
    """Read what `read_summary` reads, with `tasks` in each entry of `results`, as in files of schema 1."""
    body = read_summary(path)
    if body["schema"] == 1:
        return body
    file = tasks_path(path)
    _check_hash(file, body["tasks"], path)
    tasks = [json.loads(line) for line in file.read_bytes().splitlines()]
    results = [
        {**result, "tasks": [task for task in tasks if task["benchmark"] == result["name"]]}
        for result in body["results"]
    ]
    return {**body, "results": results}


def read_summary(path: Path) -> dict[str, Any]:
    """The summary. Raises `ConfigError` if it is missing, broken or of another schema."""
    try:
        body = json.loads(path.read_text(encoding="ascii"))
    except OSError as error:
        raise ConfigError(f"{path}: not a readable results file: {error}") from error
    except ValueError as error:
        raise ConfigError(
            f"{path}: not a results file: it is not one JSON object; `ramet eval` writes results.json into its run's "
            "directory"
        ) from error
    if not isinstance(body, dict) or body.get("schema") not in SCHEMAS:
        raise ConfigError(f"{path}: not a results file of schema {' or '.join(map(str, SCHEMAS))}")
    if "judge" in body:
        raise ConfigError(f"{path}: is what the judge {body['judge']} said; name the results that it judged instead")
    return body


def check_tasks(path: Path, body: Mapping[str, Any]) -> None:
    """Raise `ConfigError` if a task of these results cannot be read."""
    try:
        for task in (task for result in body["results"] for task in result["tasks"]):
            TaskResult.from_body(task)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: not results that this version of Ramet can read: {error!r}") from error


def read_rollouts(out: Path, body: Mapping[str, Any]) -> Iterator[tuple[str, GroupRecord]]:
    """Benchmark and rollouts of every task of the results `body` in `out`, in order.

    Raises `ConfigError` if the file is missing or another one than the results name.
    """
    about, path = body.get("rollouts"), rollouts_path(out)
    keys = [(result["name"], task["task"]) for result in body["results"] for task in result["tasks"]]
    if not about or about["groups"] != len(keys):
        raise ConfigError(f"{out}: not all of its rollouts were recorded, so it cannot be scored again")
    _check_hash(path, about, out)
    for (benchmark, task), record in zip(keys, read_records(path), strict=True):
        if record.group.task.id != task:
            raise ConfigError(f"{path}: holds task {record.group.task.id!r} where {out.name} has {task!r}")
        yield benchmark, record


def read_groups(out: Path, body: Mapping[str, Any]) -> Iterator[tuple[str, Group]]:
    """Yield what `read_rollouts` yields without the scores: what a judge is given."""
    for benchmark, record in read_rollouts(out, body):
        yield (
            benchmark,
            Group(
                task=record.group.task,
                rollouts=tuple(scored_rollout.rollout for scored_rollout in record.group.rollouts),
            ),
        )


def _check_hash(path: Path, about: Mapping[str, Any], out: Path) -> None:
    if not path.is_file() or _sha256(path) != about["sha256"]:
        raise ConfigError(
            f"{path}: {'is missing' if not path.is_file() else 'is not the file'}, and {out.name} names it with sha256 "
            f"{about['sha256'][:12]}; the two belong together"
        )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
