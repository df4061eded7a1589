"""The launches that the reference's guides have a reader copy, as they are printed there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ramet.api import compose
from ramet.cli import main

SEEDS = Path(__file__).resolve().parents[3] / "shared" / "seeds"
BLOCK = re.compile(r"^```(bash|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHARED: dict[str, Any] = {
    "tools": ["python", "search"], "advantage.name": "grpo", "train.kl_coef": 0.0, "train.minibatches": 8,
    "branch_policy.params.beam_size": 2, "branch_policy.params.entropy_weight": 0.2, "cluster.policy_workers": 8,
    "train.save_every": 5, "train.eval_every": 5, "wandb": {"project": "reasoning_tasks"}, "rollout_step.name": "tags",
}  # fmt: skip
BY_HAND: list[dict[str, Any]] = [
    SHARED | {
        "branch_policy.name": "arpo_release", "policy_loss.name": "ppo_clip", "rewards": ["deep_research"],
        "rollout.group_size": 16, "branch_policy.params.initial_rollouts": 8, "train.tasks_per_step": 128,
        "policy.max_microbatch_tokens": 11264, "train.steps": 156, "train.eval_first": False,
        "engine.params.gpu_memory_utilization": 0.7, "cluster.rollout_workers": 8,
    },
    SHARED | {
        "branch_policy.name": "aepo_release", "policy_loss.name": "aepo", "rewards": ["deep_research"],
        "rollout.group_size": 12, "branch_policy.params.initial_rollouts": 6, "train.tasks_per_step": 64,
        "policy.max_microbatch_tokens": 16384, "train.steps": 780, "data.max_prompt_tokens": 2000,
        "wandb": {"project": "deep_research"},
    },
    SHARED | {
        "branch_policy.name": "arpo_release", "policy_loss.name": "ppo_clip", "rewards": ["math"],
        "rollout.group_size": 16, "train.tasks_per_step": 128, "train.steps": 156, "train.eval_first": True,
        "cluster.rollout_workers": 4, "run.name": "ARPO_qwen2.5_7b",
    },
]  # fmt: skip
SFT_BY_HAND = {
    "sft.max_tokens": 15000, "sft.sequences_per_step": 16, "sft.lr": 7e-6, "sft.epochs": 3.0, "sft.strategy": "zero3",
    "sft.trainer.lr_scheduler_type": "cosine", "sft.trainer.warmup_ratio": 0.1, "model.dtype": "bfloat16",
    "run.root": "/path/to",
}  # fmt: skip


def blocks(text: str) -> list[str]:
    """Launches of RL that are printed whole, and settings of SFT."""
    printed = (block for seed in sorted(SEEDS.glob("*.txt")) for _, block in BLOCK.findall(seed.read_text("utf-8")))
    return [block for block in printed if text in block and "# ..." not in block]


def value_at(config: Any, key: str) -> Any:
    for part in key.split("."):
        config = config[part] if isinstance(config, dict) else getattr(config, part)
    return list(config) if key in ("rewards", "tools") else config


@pytest.mark.skipif(not SEEDS.is_dir(), reason="needs ../shared/seeds")
def test_published_launches_have_the_values_of_their_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    launches = [block for block in blocks("verl.trainer.main_ppo") if "initial_rollouts" in block]
    assert len(launches) == len(BY_HAND)
    for number, (launch, expected) in enumerate(zip(launches, BY_HAND, strict=True)):
        Path(f"l{number}.sh").write_text(launch, encoding="utf-8")
        assert main(["migrate", "verl", f"l{number}.sh", "--tasks", "10000"]) == 0
        config = compose([f"experiment=l{number}"]).config
        assert {key: value_at(config, key) for key in expected} == expected


@pytest.mark.skipif(not SEEDS.is_dir(), reason="needs ../shared/seeds")
def test_published_settings_of_sft_have_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [settings, *_] = [block for block in blocks("stage: sft") if "model_name_or_path" in block]
    Path("sft.yaml").write_text(settings, encoding="utf-8")
    assert main(["migrate", "llamafactory", "sft.yaml", "--gpus", "8"]) == 0
    config = compose(["experiment=sft"], job="sft").config
    assert {key: value_at(config, key) for key in SFT_BY_HAND} == SFT_BY_HAND
