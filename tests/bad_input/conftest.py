"""A tiny model, one task file, and a training command of two steps that needs only what is installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.models.tiny import make_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad_input") / "model"
    return make_tiny_model(folder, hidden=32, layers=1, heads=2, intermediate=32, max_positions=256)


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bad_input_data") / "tasks.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{i} + 1", "answer": str(i + 1)}) + "\n" for i in range(4)))
    return file


@pytest.fixture
def train(model: Path, tasks: Path) -> list[str]:
    """Overrides; what a test adds comes later and wins."""
    return [
        f"model.path='{model}'", f"data.train=['{tasks}']", "data.max_prompt_tokens=32", "rewards=[format]",
        "run.name=here", "rollout_step.system_prompt=never", "rollout.group_size=2", "rollout.max_concurrent=4",
        "rollout.max_response_tokens=8", "engine.params.slots=4", "train.steps=1", "train.tasks_per_step=2",
    ]  # fmt: skip
