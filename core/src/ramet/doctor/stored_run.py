"""Reads what a run left in its folder, in bounded time: all metrics, and a sample of the recorded rollouts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.rollout.record import UNREADABLE, GroupRecord, read_records
from ramet.rollout.record_files import recorded_files
from ramet.runs.manifest import BROKEN_CONFIG, MANIFEST, read_values
from ramet.tracking.jsonl import NAME, curves_of, evenly_spaced, read_metrics
from ramet.types import Group, RecordedGroup, RolloutScore, StoredRun

logger = logging.getLogger(__name__)
FILES = {"step": 8, "valid": 2, "eval": 1}  # files of each kind that are read, the first and the last among them
GROUPS = 32  # of a file
TOKENS = 2_000_000  # of all that is read: about two seconds
EVALUATED = "results.rollouts.jsonl.gz"  # of an evaluation, whose tasks are all in one file


def read_stored_run(folder: Path) -> StoredRun:
    """Read a run. A file that is broken is logged and left out.

    Raises `ConfigError` for a folder that holds no metrics, no recorded rollouts and no manifest.
    """
    curves = curves_of(read_metrics(folder / NAME))
    groups = tuple(_groups(folder))
    if not curves and not groups and not (folder / MANIFEST).is_file():
        raise ConfigError(f"{folder}: nothing to examine: it holds no {NAME}, no recorded rollouts and no {MANIFEST}")
    metrics = {name: {int(step): value for step, value in zip(*curve, strict=True)} for name, curve in curves.items()}
    return StoredRun(folder=folder, job=_job(folder), config=_config(folder), metrics=metrics, groups=groups)


def _job(folder: Path) -> str:
    try:
        return str(json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["job"])
    except UNREADABLE:
        return "train"


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        return {str(name): value for name, value in read_values(folder / "config.yaml").items()}
    except BROKEN_CONFIG as error:
        logger.warning("%s could not be read: %s", folder / "config.yaml", error)
        return {}


def _groups(folder: Path) -> Iterator[RecordedGroup]:
    recorded = recorded_files(folder)
    files = {kind: [file.path for file in recorded if file.kind == kind] for kind in ("step", "valid")}
    files["eval"] = [folder / EVALUATED] if (folder / EVALUATED).is_file() else []
    chosen = [(kind, path) for kind, paths in files.items() for path in evenly_spaced(paths, FILES[kind])]
    for kind, path in chosen:
        yield from _of_file(kind, path, TOKENS // len(chosen))


def _of_file(kind: str, path: Path, tokens: int) -> Iterator[RecordedGroup]:
    try:
        for record in islice(read_records(path), GROUPS):
            yield _recorded(kind, record)
            tokens -= sum(rollout.rollout.n_response_tokens for rollout in record.group.rollouts)
            if tokens <= 0:
                return
    except UNREADABLE as error:
        logger.warning("%s could not be read: %s", path, error)


def _recorded(kind: str, record: GroupRecord) -> RecordedGroup:
    scores = {
        scored.rollout.id: RolloutScore(reward=scored.reward, parts=scored.parts, token_rewards=scored.token_rewards)
        for scored in record.group.rollouts
    }
    rollouts = tuple(scored.rollout for scored in record.group.rollouts)
    return RecordedGroup(
        kind=kind, step=record.step, group=Group(task=record.group.task, rollouts=rollouts, scores=scores)
    )
