"""What all runs of a kind of task have in common: the model, how much of everything, and which keys."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ramet.models.tiny import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
GROUP = 8  # rollouts of a task


@dataclass(frozen=True, slots=True)
class Phase:
    """Of SFT. `habit`: whether its traces have the habit of the kind."""

    name: str
    traces: int
    lr: float
    epochs: int
    habit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`model` makes the untrained one of a seed, in a folder that it may write to. `every`: steps between validations.

    `first`, `seeds`: those that count. `tasks` of a step; `tested`, `validated`, `trained`: problems. `shared_keys` are
    of SFT and of training.
    """

    results: str  # the name of the file in bench/results
    first: int
    seeds: int
    model: Callable[[Path, int], Path]
    phases: tuple[Phase, ...]
    steps: int
    every: int
    tasks: int
    tested: int
    validated: int
    trained: int
    shared_keys: tuple[str, ...]
    sft_keys: tuple[str, ...]
    train_keys: tuple[str, ...]

    @property
    def values(self) -> str:
        """All of it, to be compared with that of an earlier run."""
        return repr({key: value for key, value in asdict(self).items() if key not in ("model", "first", "seeds")})


def _tiny(folder: Path, seed: int) -> Path:
    make_tiny_model(folder / "init", seed=seed, hidden=96, layers=3, intermediate=384)  # 0.4M parameters
    return folder / "init"


def _smollm2(_folder: Path, _seed: int) -> Path:
    sys.path.append(str(ROOT / "scripts/quickstart"))
    from smollm2 import model_folder

    folder: Path = model_folder(ROOT / "runs/models")
    return folder


TINY = Setting(
    results="branching_equal_calls",
    first=11,  # seeds 1 to 5 are those of the first experiment, which the hypotheses come from
    seeds=10,
    model=_tiny,
    phases=(Phase("skill", 6400, 4e-3, 1, False), Phase("habit", 2400, 1e-3, 1, True)),
    steps=18,
    every=2,
    tasks=12,
    tested=200,
    validated=96,
    trained=600,
    shared_keys=("run.threads=1",),
    sft_keys=("sft.sequences_per_step=32", "sft.trainer.warmup_ratio=0.05", "sft.trainer.logging_steps=25"),
    train_keys=("policy.lr=0.0002", "policy.schedule=linear", "policy.min_lr_ratio=0.1"),
)
REAL = Setting(
    results="branching_real",
    first=1,
    seeds=5,
    model=_smollm2,
    phases=(Phase("sft", 48, 1e-4, 2, True),),
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
