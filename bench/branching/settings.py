"""What all runs of `people` have in common: a real model, how much of everything, and which keys."""

from __future__ import annotations

import sys
from pathlib import Path

from ramet_benchmarks.branching.settings import SftPhase, TaskSetting

ROOT = Path(__file__).resolve().parents[2]


def _smollm2(_folder: Path, _seed: int) -> Path:
    sys.path.append(str(ROOT / "scripts/quickstart"))
    from smollm2 import model_folder

    folder: Path = model_folder(ROOT / "runs/models")
    return folder


REAL = TaskSetting(
    results="branching_real",
    first=1,
    seeds=5,
    model=_smollm2,
    phases=(SftPhase("sft", 48, 1e-4, 2, True),),
    steps=8,
    every=2,
    tasks=8,
    tested=60,
    validated=64,
    trained=600,
    shared_keys=("run.threads=1", "model.dtype=float32"),  # two processes at once, one on each core
    sft_keys=(
        "sft.sequences_per_step=4", "sft.trainer.warmup_ratio=0.1", "sft.max_tokens=256",
        "sft.max_microbatch_tokens=1024",
    ),
    train_keys=(
        "policy.lr=0.00003", "policy.schedule=constant", "policy.max_microbatch_tokens=512",
        "rollout.deadline_s=600", "rollout.step_deadline_s=1200",
    ),
)  # fmt: skip
