"""Settings that all runs of a kind of task have in common: the model, how much of everything, and which keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from ramet.models.tiny import make_tiny_model

GROUP = 8  # rollouts of a task


@dataclass(frozen=True, slots=True)
class SftPhase:
    """Phase of SFT. `habit`: whether its traces have the habit of the kind."""

    name: str
    traces: int
    lr: float
    epochs: int
    habit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSetting:
    """Settings of the runs. `model` makes the untrained model of a seed, in a folder that it may write to.

    `every`: steps between validations. `first`, `seeds`: those that count. `tasks` of a step; `tested`, `validated`,
    `trained`: problems. `shared_keys` are of SFT and of training.
    """

    results: str  # the name of the file with the numbers
    first: int
    seeds: int
    model: Callable[[Path, int], Path]
    phases: tuple[SftPhase, ...]
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
        """Text of all of it, to be compared with the text of an earlier run."""
        return repr({key: value for key, value in asdict(self).items() if key not in ("model", "first", "seeds")})


def _tiny(folder: Path, seed: int) -> Path:
    make_tiny_model(folder / "init", seed=seed, hidden=96, layers=3, intermediate=384)  # 0.4M parameters
    return folder / "init"


TINY = TaskSetting(
    results="branching_equal_calls",
    first=11,  # seeds 1 to 5 made the first experiment, which the hypotheses come from
    seeds=10,
    model=_tiny,
    phases=(SftPhase("skill", 6400, 4e-3, 1, False), SftPhase("habit", 2400, 1e-3, 1, True)),
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
