"""`ramet train` starts its rewards and tools before anything is played, and gives them a folder of the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.errors import PluginError
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.train.training import run

PLUGIN = """
import os
from ramet import hookimpl
ramet_contract = "1"

class Lengths:
    async def start(self, services):
        if os.environ.get("RAMET_TEST_BREAK"):
            raise OSError("the judge does not answer")
        self.limiter = services.limiter("judge", 1000)
        (services.folder / "started").write_text(str(services.seed))

    async def __call__(self, group):
        await self.limiter.wait(len(group))
        return [float(i) for i in range(len(group))]

@hookimpl
def register_rewards(register):
    register("lengths", Lengths)
"""


@pytest.fixture
def overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "ramet_lengths.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setenv("RAMET_PLUGINS", "ramet_lengths")
    load_plugins.cache_clear()
    model = make_tiny_model(tmp_path / "model", hidden=32, layers=2, intermediate=64)
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i}?", "answer": "1"}) + "\n" for i in range(2)))
    yield [
        "algorithm=grpo", f"model.path={model}", f"data.train=[{data}]", f"run.root={tmp_path / 'runs'}", "run.name=r",
        "run.seed=5", "rewards.short.use=lengths", "train.steps=1", "train.tasks_per_step=2", "train.minibatches=1",
        "rollout.group_size=2",
        "rollout.max_response_tokens=6", "data.max_prompt_tokens=256", "engine=torch", "engine.params.slots=4",
        "rollout.max_concurrent=4", "trackers=[jsonl]",
    ]  # fmt: skip
    load_plugins.cache_clear()


def test_a_reward_is_started_with_what_the_run_shares(overrides: list[str], tmp_path: Path) -> None:
    run(compose(overrides, job="train"))
    assert (tmp_path / "runs/r/services/rewards.short/started").read_text() == "5"
    assert "reward/short" in (tmp_path / "runs/r/metrics.jsonl").read_text()


def test_a_reward_that_cannot_start_stops_the_run_before_the_first_step(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAMET_TEST_BREAK", "1")
    with pytest.raises(PluginError) as caught:
        run(compose(overrides, job="train"))
    line = 1 + PLUGIN.splitlines().index('            raise OSError("the judge does not answer")')
    message = "reward 'short' of plugin 'ramet_lengths' could not start: OSError: the judge does not answer"
    assert str(caught.value).startswith(f"{message} (") and str(caught.value).endswith(f"ramet_lengths.py:{line})")
    assert not list((tmp_path / "runs/r/rollouts").iterdir())
