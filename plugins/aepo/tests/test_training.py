"""Two steps of `ramet train algorithm=aepo` on a tiny model."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.config.compose import compose
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.train.training import run

# A model with random weights writes no tags: a turn ends at a letter, and is followed by a result that needs none.
PLUGIN = """
from ramet import Markup, StepResult, StopReason, hookimpl, per_rollout
ramet_contract = "1"

class ThreeTurns:
    def system_prompt(self, tools):
        return ""

    async def __call__(self, state, ctx):
        generation = await ctx.generate(stop=list("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"))
        if generation.finished or generation.truncated or state.turn == 2:
            return StepResult(stop=StopReason.END)
        return StepResult(insert=(Markup(text=" = 3 + "),))

@per_rollout
def even(rollout):
    text = rollout.response.encode()
    return sum(byte % 2 == 0 for byte in text) / max(1, len(text))

@hookimpl
def register_rollout_steps(register):
    register("three_turns", ThreeTurns)

@hookimpl
def register_rewards(register):
    register("even", lambda: even)
"""


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "ramet_three_turns.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setenv("RAMET_PLUGINS", "ramet_three_turns")
    load_plugins.cache_clear()
    model = make_tiny_model(tmp_path / "model", hidden=32, layers=2, heads=2, intermediate=64, initializer_range=0.2)
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i}?", "answer": "1"}) + "\n" for i in range(4)))
    yield [
        "algorithm=aepo", f"model.path={model}", "model.device=cpu", f"data.train=[{data}]", f"run.root={tmp_path}",
        "run.name=aepo", "run.seed=3", "run.deterministic=true", "rollout_step=three_turns", "rewards=[even]",
        "tools=[]", "rollout_step.system_prompt=never", "data.max_prompt_tokens=64", "rollout.group_size=6",
        "rollout.first_tokens=3", "rollout.max_concurrent=8", "rollout.max_response_tokens=64",
        "engine.params.slots=8", "train.steps=2", "train.tasks_per_step=2", "train.minibatches=2", "policy.lr=1e-2",
        "policy_loss.params.entropy_above=0.1", "trackers=[jsonl]",
    ]  # fmt: skip
    load_plugins.cache_clear()


def test_two_steps_are_trained(keys: list[str], tmp_path: Path) -> None:
    run(compose(keys, job="train"))
    lines = [json.loads(line) for line in (tmp_path / "aepo/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["train/grad_norm"] > 0 for line in lines)
    assert all("advantage/negative_factor_share" in line and "train/balanced_fraction" in line for line in lines)
    rollouts = [rollout for step in (1, 2) for rollout in played(tmp_path / "aepo", step)]
    assert len(rollouts) == 24 and all(rollout["fault"] is None for rollout in rollouts)
    assert any(rollout["parent"] is not None for rollout in rollouts), "AEPO forked nothing"


def played(folder: Path, step: int) -> list[dict[str, Any]]:
    with gzip.open(folder / f"rollouts/step_{step:06d}.jsonl.gz", "rt") as groups:
        return [rollout for group in groups for rollout in json.loads(group)["rollouts"]]
