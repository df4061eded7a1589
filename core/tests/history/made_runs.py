"""Run directories as the jobs leave them, made by the parts that the jobs use, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from ramet.config.compose import compose
from ramet.errors import RametError
from ramet.policy.checkpoint.store import Checkpoints, CheckpointScore
from ramet.runs.manifest import DataRecord, make_manifest
from ramet.runs.run_dir import RunDir
from ramet.tracking.jsonl import JsonlTracker

TASKS = DataRecord(files=["a.jsonl"], fingerprint="f" * 64, tasks=41, too_long=1)


def write_training(
    root: Path,
    name: str,
    rewards: Sequence[float],
    *keys: str,
    valid: Mapping[int, float] | None = None,
    error: BaseException | None = None,
) -> Path:
    """Write a run of `ramet train` with these rewards by step, and validations by step; `error` ends it, and one of
    Ramet's is raised.
    """
    overrides = ["model.path=m", "train.tasks_per_step=4", f"run.root={root}", f"run.name={name}", *keys]
    resolved = compose(overrides, job="train")
    ended = nullcontext() if isinstance(error, RametError) else suppress(ValueError, KeyboardInterrupt)
    with ended, RunDir.open(root, name) as run:
        run.record(resolved, make_manifest(resolved, data={"train": TASKS}, model="m" * 64))
        tracker = JsonlTracker(run.metrics)
        for step, reward in enumerate(rewards, start=1):
            tracker.log(step, {"reward/roots_mean": reward, "time/step_s": 2.0})
            if step in (valid or {}):
                tracker.log(step, {"valid/reward": (valid or {})[step]})
        if error is not None:
            raise error
    return root / name


def write_checkpoints(run: Path, scores: Mapping[int, float], size: int = 1000) -> None:
    """Write a whole checkpoint of `size` bytes for each step, with its score."""
    checkpoints = Checkpoints(run / "checkpoints", keep=len(scores))
    for step, value in scores.items():

        def fill(folder: Path, value: float = value) -> None:
            (folder / "weights.bin").write_bytes(b"x" * size)
            CheckpointScore(metric="valid/reward", value=value).write(folder)

        checkpoints.save(step, fill)
