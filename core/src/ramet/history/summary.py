"""The summary of a run, read from its directory: job, state, steps, the last reward, size and age.

A run is a directory with a manifest, at most two levels below the folder that is listed: `runs/NAME`, and
`runs/PIPELINE/STAGE`.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import ceil
from pathlib import Path
from typing import Any

from ramet.errors import ConfigError
from ramet.evaluate.files import read_summary
from ramet.evaluate.partial import PARTIAL, TaskLines
from ramet.evaluate.statistics import Estimate, over_tasks
from ramet.evaluate.stored import result_files
from ramet.runs.lock import is_held
from ramet.runs.manifest import BROKEN_CONFIG, MANIFEST, Manifest, read_manifest, read_values
from ramet.runs.own_files import LOCK
from ramet.sft.checkpoints import STATE, step_of
from ramet.sft.output import Summary
from ramet.sft.output import read_summary as read_sft_summary
from ramet.tracking.columns import RL, SFT
from ramet.tracking.jsonl import NAME as METRICS
from ramet.tracking.jsonl import Curve, curves_of, read_metrics

logger = logging.getLogger(__name__)
LAST_STEPS = 10  # of a training, whose mean is compared: at most so many, and at most half of them
TRAININGS = {"train": RL.main, "sft": SFT.main}  # job -> the metric that is in every step
VALIDATIONS = {"train": "valid/reward", "sft": "sft/valid_loss"}
BENCHMARK_METRIC = re.compile(r"valid/(?!reward/)[^/]+/[^/]+")
RESULTS = {"train": "reward", "sft": "loss", "eval": "score"}  # job -> what its result is called
ODD = (ValueError, TypeError, KeyError, IndexError, AttributeError)  # raised by other values than a job writes
FILES = (METRICS, "run.log", MANIFEST, f"results.json{PARTIAL}")  # that a run at work changes


class RunStatus(StrEnum):
    RUNNING = "running"  # its lock is held
    FINISHED = "finished"
    STOPPED = "stopped"  # by a signal; the same command resumes it
    FAILED = "failed"  # by an error
    KILLED = "killed"  # it left no note of its end: killed, or the machine went down


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run."""

    path: Path
    name: str  # below the folder that was listed
    job: str  # train, sft or eval
    state: RunStatus
    done: int  # steps; of an evaluation tasks
    planned: int | None  # None: not known
    result: float | None  # reward or loss of the last step; of an evaluation the first benchmark's main metric
    valid: float | None  # the last validation of a training
    size: int  # bytes on disk
    changed: float  # seconds since 1970 of the last sign of it

    def row(self) -> dict[str, Any]:
        """Return the summary as plain values; `result` by its kind: `reward`, `loss` or `score`."""
        return {
            "name": self.name,
            "path": str(self.path),
            "job": self.job,
            "state": self.state.value,
            "done": self.done,
            "planned": self.planned,
            RESULTS.get(self.job, "result"): self.result,
            "valid": self.valid,
            "bytes": self.size,
            "changed": self.changed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCurves:
    """The logged curves of a training, by step."""

    main: Curve  # the reward or the loss
    valid: Curve
    valid_name: str  # the metric of the validation
    seconds: Curve  # of each step

    @classmethod
    def read(cls, run: Path, job: str) -> TrainingCurves:
        """Read `metrics.jsonl`. Where no reward applies to the validation, it is the metric of the first benchmark."""
        curves = curves_of(read_metrics(run / METRICS))
        of_benchmarks = [name for name in curves if BENCHMARK_METRIC.fullmatch(name)]
        valid_name = VALIDATIONS[job] if VALIDATIONS[job] in curves else next(iter(of_benchmarks), VALIDATIONS[job])
        main, valid, seconds = (curves.get(name, ([], [])) for name in (TRAININGS[job], valid_name, "time/step_s"))
        return cls(main=main, valid=valid, valid_name=valid_name, seconds=seconds)

    @property
    def n_last(self) -> int:
        """The number of steps that `last` is the mean of."""
        return min(LAST_STEPS, ceil(len(self.main[1]) / 2))

    def last(self) -> Estimate:
        """The mean over the last steps, with its 95 % interval over steps (Student's t)."""
        return over_tasks(self.main[1][len(self.main[1]) - self.n_last :])


def run_folders(root: Path) -> list[Path]:
    """Return the run directories in `root`, or `root` itself if it is one; one that links lead to only once.

    Raises `ConfigError` for no folder.
    """
    if not root.is_dir():
        raise ConfigError(f"runs: no folder {str(root)!r} (working directory: {Path.cwd()})")
    if (root / MANIFEST).is_file():
        return [root]
    found = [file.parent for pattern in ("*", "*/*") for file in root.glob(f"{pattern}/{MANIFEST}")]
    found.sort(key=lambda folder: is_linked(folder, root), reverse=True)  # a real folder replaces links
    return sorted({folder.resolve(): folder for folder in found}.values())


def is_linked(folder: Path, root: Path) -> bool:
    """Whether a link below `root` leads to the folder."""
    return folder.resolve() != root.resolve() / folder.relative_to(root)


def list_runs(root: Path) -> list[RunSummary]:
    """Summaries of the runs in `root`, the newest first. A run whose files cannot be read is logged and left out."""
    summaries = []
    for folder in run_folders(root):
        try:
            summaries.append(summarise_run(folder, root))
        except (ConfigError, OSError) as error:
            logger.warning("%s: left out: %s", folder, error)
    return sorted(summaries, key=lambda summary: -summary.changed)


def summarise_run(folder: Path, root: Path | None = None) -> RunSummary:
    """The summary of the run in `folder`, named from `root`. Raises `ConfigError` for files that no job has written."""
    manifest = read_manifest(folder / MANIFEST)
    config = _config(folder)
    measure = {"train": _train, "sft": _sft, "eval": _evaluation}.get(manifest.job)
    try:
        done, planned, result, valid = (0, None, None, None) if measure is None else measure(folder, config, manifest)
        changed = _changed(folder, manifest)
    except ODD as error:
        raise ConfigError(f"{folder}: not the files of a run of `ramet {manifest.job}`: {error!r}") from error
    is_listed = root is not None and root != folder
    return RunSummary(
        path=folder,
        name=folder.relative_to(root).as_posix() if root is not None and is_listed else folder.resolve().name,
        job=manifest.job,
        state=status_of(folder, manifest),
        done=done,
        planned=planned,
        result=result,
        valid=valid,
        size=folder_bytes(folder),
        changed=changed,
    )


def status_of(folder: Path, manifest: Manifest) -> RunStatus:
    """Whether the run is at work, else how its last attempt ended."""
    return RunStatus.RUNNING if is_held(folder / LOCK) else ended(manifest)


def ended(manifest: Manifest) -> RunStatus:
    """How the last attempt of a run that is not at work ended."""
    ends = {"done": RunStatus.FINISHED, "interrupted": RunStatus.STOPPED, "failed": RunStatus.FAILED}
    return ends.get(manifest.attempts[-1].status if manifest.attempts else "", RunStatus.KILLED)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; links are not followed, and files that vanish meanwhile not counted."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return total


Measured = tuple[int, int | None, float | None, float | None]  # done, planned, result, validation


def _train(folder: Path, config: Mapping[str, Any], manifest: Manifest) -> Measured:
    curves = TrainingCurves.read(folder, "train")
    return _last_step(curves), _planned_steps(config, manifest), _last(curves.main), _last(curves.valid)


def _planned_steps(config: Mapping[str, Any], manifest: Manifest) -> int | None:
    """`train.steps`, or one pass over the tasks that are run; None where that is not recorded."""
    train, data = config.get("train") or {}, manifest.data.get("train")
    try:
        if train.get("steps"):
            return int(train["steps"])
        drawn = train.get("budget_tasks") or train.get("tasks_per_step")
        if data is None or not drawn:
            return None
        return max(1, (data.tasks - data.too_long - data.by_difficulty) // int(drawn))
    except ODD:  # also ${oc.env:STEPS}, whose value is not recorded
        return None


def _sft(folder: Path, config: Mapping[str, Any], manifest: Manifest) -> Measured:
    curves = TrainingCurves.read(folder, "sft")
    try:
        summary = read_sft_summary(folder)
    except (ValueError, TypeError) as error:
        logger.warning("%s: not a summary of a training: %s", folder, error)
        summary = None
    if summary is None:
        return _last_step(curves), _planned_by_trainer(folder), _last(curves.main), _last(curves.valid)
    planned = summary.planned_steps or summary.steps
    return summary.steps, planned, summary.final_loss, _valid_loss(summary, curves)


def _valid_loss(summary: Summary, curves: TrainingCurves) -> float | None:
    return _last(curves.valid) if summary.valid_loss is None else summary.valid_loss


def _planned_by_trainer(folder: Path) -> int | None:
    """The steps that the newest checkpoint of an unfinished fine-tuning names; None without one."""
    for checkpoint in sorted((folder / "checkpoints").glob("checkpoint-*"), key=step_of, reverse=True):
        try:
            return int(json.loads((checkpoint / STATE).read_text(encoding="utf-8"))["max_steps"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _evaluation(folder: Path, config: Mapping[str, Any], manifest: Manifest) -> Measured:
    """Tasks and the main metric of the first benchmark; of an unfinished evaluation the tasks that are scored."""
    for out in result_files(folder, config.get("run") or {}):
        if out.is_file():
            results = read_summary(out)["results"]
            n_tasks = sum(result["metrics"][0]["n_tasks"] for result in results)
            return n_tasks, n_tasks, results[0]["metrics"][0]["avg"]["mean"] if results else None, None
        lines = TaskLines(out)
        if lines.lines.path.is_file():
            lines.read()
            return len(lines.tasks), None, None, None
    return 0, None, None, None


def _last(curve: Curve) -> float | None:
    return curve[1][-1] if curve[1] else None


def _last_step(curves: TrainingCurves) -> int:
    return int(curves.main[0][-1]) if curves.main[0] else 0


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        return read_values(folder / "config.yaml")
    except BROKEN_CONFIG as error:
        logger.warning("%s: config.yaml cannot be read: %s", folder, error)
        return {}


def _changed(folder: Path, manifest: Manifest) -> float:
    ended_at = manifest.attempts[-1].ended if manifest.attempts else None
    if ended_at is not None:
        return datetime.fromisoformat(ended_at).timestamp()
    return max(_times(folder, FILES), default=0.0)


def _times(folder: Path, names: Sequence[str]) -> Iterator[float]:
    for name in names:
        if (folder / name).is_file():
            yield (folder / name).stat().st_mtime
