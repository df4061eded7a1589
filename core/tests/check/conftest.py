"""A tiny model with distributions that are not flat, a task file, and the command line of a training run on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from ramet.models.tiny import make_tiny_model

MakeModel = Callable[[int], Path]


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """A model by its seed. Heads of 32, which vLLM on a CPU needs."""
    folder = tmp_path_factory.mktemp("models")

    def make(seed: int) -> Path:
        path = folder / str(seed)
        if not path.exists():
            make_tiny_model(path, seed=seed, hidden=64, heads=2, layers=2, intermediate=64, initializer_range=0.1)
        return path

    return make


@pytest.fixture
def overrides(make_model: MakeModel, tmp_path: Path) -> list[str]:
    torch.set_num_threads(1)
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"What is {i}+{i}?", "answer": str(2 * i)}) + "\n" for i in range(6)))
    return [
        f"model.path={make_model(1)}", "model.device=cpu", f"data.train=[{data}]", f"run.root={tmp_path / 'runs'}",
        "data.max_prompt_tokens=64", "rollout.max_response_tokens=32", "rollout.max_concurrent=16",
        "rollout_step.system_prompt=never", "train.tasks_per_step=2", "rewards=[format]",
    ]  # fmt: skip
