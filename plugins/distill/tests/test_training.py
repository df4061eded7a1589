"""`ramet train` with each preset on a tiny model, whose turns end at a letter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

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
    return float(len(rollout.response) % 2)

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
    (tmp_path / "modules" / "ramet_lettered_turns.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setenv("RAMET_PLUGINS", "ramet_lettered_turns")
    load_plugins.cache_clear()
    model = make_tiny_model(tmp_path / "model", hidden=32, layers=2, heads=2, intermediate=64, initializer_range=0.2)
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"{i}?", "answer": "1"}) + "\n" for i in range(4)))
    yield [
        f"model.path={model}", "model.device=cpu", f"data.train=[{data}]", f"run.root={tmp_path}", "run.name=r",
        "run.seed=3", "run.deterministic=true", "rollout_step=three_turns", "rewards=[even]", "tools=[]",
        "rollout_step.system_prompt=never", "data.max_prompt_tokens=64", "rollout.group_size=4",
        "rollout.max_concurrent=8", "rollout.max_response_tokens=64", "engine=torch", "engine.params.slots=8",
        "train.steps=2", "train.tasks_per_step=2", "train.minibatches=1", "policy.lr=1e-2", "trackers=[jsonl]",
    ]  # fmt: skip
    load_plugins.cache_clear()


@pytest.mark.slow
def test_the_student_comes_closer_to_its_teacher(keys: list[str], tmp_path: Path) -> None:
    teacher = make_tiny_model(tmp_path / "t", seed=2, hidden=48, layers=3, heads=2, intermediate=64)
    more = ["train.steps=16", "train.tasks_per_step=4", "rollout.group_size=8", "rollout.max_response_tokens=24"]
    run(compose([*keys, *more, "algorithm=distill", f"train.teacher={teacher}"], job="train"))
    distances = metric(tmp_path, "advantage/teacher_kl")
    assert sum(distances[-3:]) < 0.7 * sum(distances[:3])


@pytest.mark.parametrize(
    ("algorithm", "name"), [("sdpo", "advantage/feedback_share"), ("igpo", "advantage/information_gain")]
)
def test_two_steps_are_trained(keys: list[str], tmp_path: Path, algorithm: str, name: str) -> None:
    run(compose([*keys, f"algorithm={algorithm}", "train.minibatches=1"], job="train"))
    assert all(norm > 0 for norm in metric(tmp_path, "train/grad_norm"))
    assert all(value != 0 for value in metric(tmp_path, name))


def metric(folder: Path, name: str) -> list[float]:
    return [json.loads(line)[name] for line in (folder / "r/metrics.jsonl").read_text().splitlines()]
