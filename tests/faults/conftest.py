"""One tiny model, one task file, a plugin of the tests' own, and `ramet` jobs in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ramet.config.compose import compose
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.rollout.record import read_records, record_line
from ramet.train.recording import record_path
from ramet.train.training import run

PLUGIN = Path(__file__).parent / "plugin"
TASKS = 7  # no multiple of what a step needs, so that epochs end within a step


@dataclass(frozen=True)
class Workspace:
    """What the runs of one test share, and where they lie."""

    model: Path
    tasks: Path
    runs: Path

    def train(self, name: str, *more: str, steps: int = 2) -> Path:
        """A deterministic run of 3 tasks x 4 rollouts a step in this process; its directory."""
        run(compose(self.overrides(name, *more, steps=steps), job="train"))
        return self.runs / name

    def overrides(self, name: str, *more: str, steps: int = 2) -> list[str]:
        return [
            f"model.path={self.model}", f"data.train=[{self.tasks}]", "data.max_prompt_tokens=32",
            f"run.root={self.runs}", f"run.name={name}", "run.deterministic=true", "run.seed=11",
            "engine.params.slots=16", "rollout_step=fault_turns", "rollout_step.system_prompt=never",
            "tools=[fault_tool]", "rewards=[fault_even]", "rollout.group_size=4", "rollout.max_concurrent=12",
            "rollout.max_response_tokens=64", f"train.steps={steps}", "train.tasks_per_step=3", "train.save_every=1",
            "policy.lr=0.001", "trackers=[jsonl]", *more,
        ]  # fmt: skip

    def measure(self, name: str, *more: str) -> list[str]:
        """Overrides of an evaluation of 4 tasks x 2 rollouts."""
        return [
            f"model.path={self.model}", f"run.root={self.runs}", f"run.name={name}", "benchmarks=[arithmetic]",
            "benchmarks.arithmetic.limit=4", "evaluate.k=2", "rollout_step.system_prompt=never",
            "rollout.max_response_tokens=8", "data.max_prompt_tokens=32", "engine.params.slots=8",
            "rollout.max_concurrent=8", *more,
        ]  # fmt: skip

    def records(self, name: str, step: int) -> list[dict[str, Any]]:
        """The groups of one step as they are on disk."""
        return [json.loads(record_line(record)) for record in read_records(record_path(self.runs / name, step))]

    def sampled(self, name: str, step: int) -> dict[str, list[str]]:
        """Rollout -> token ids of all its segments, as they are packed on disk."""
        return {
            f"{group['task']['id']}/{rollout['id']}": [group["segments"][i]["ids"] for i in rollout["segments"]]
            for group in self.records(name, step)
            for rollout in group["rollouts"]
        }

    def seen(self, name: str, step: int) -> list[str]:
        """Ids of the tasks of one step."""
        return [group["task"]["id"] for group in self.records(name, step)]

    def metrics(self, name: str) -> list[dict[str, Any]]:
        """Every line of the metrics file."""
        return [json.loads(line) for line in (self.runs / name / "metrics.jsonl").read_text().splitlines()]


def write_tasks(path: Path, prompts: Sequence[str]) -> Path:
    path.write_text("".join(json.dumps({"prompt": prompt, "answer": "x"}) + "\n" for prompt in prompts))
    return path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "model"
    return make_tiny_model(folder, hidden=32, layers=2, heads=2, intermediate=64, max_positions=256)


@pytest.fixture(scope="module")
def plugin() -> Iterator[None]:
    """The tests' own plugin along with the installed ones, as long as one file of tests runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGIN))
        patch.setenv("RAMET_PLUGINS", "faults_plugin")
        load_plugins.cache_clear()
        yield
    load_plugins.cache_clear()


@pytest.fixture(scope="module")
def workspace(plugin: None, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    folder = tmp_path_factory.mktemp("workspace")
    return Workspace(
        model, write_tasks(folder / "tasks.jsonl", [f"task {i}" + "!" * i for i in range(TASKS)]), folder / "runs"
    )
