"""Two steps of `ramet train algorithm=arpo_release` and `aepo_release` on a tiny model."""

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

# A model with random weights writes a closing tag now and then, one token here; the opening one is found in the prompt.
PLUGIN = """
from ramet import function_tool, hookimpl, per_rollout
ramet_contract = "1"

def find(query: str) -> str:
    '''Looks something up.'''
    return "nothing"

@per_rollout
def even(rollout):
    text = rollout.response.encode()
    return sum(byte % 2 == 0 for byte in text) / max(1, len(text))

@hookimpl
def register_tools(register):
    register("search", lambda: function_tool(find))

@hookimpl
def register_rewards(register):
    register("even", lambda: even)
"""


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "ramet_find.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setenv("RAMET_PLUGINS", "ramet_find")
    monkeypatch.setenv("RAMET_BLOCK_PLUGINS", "tools_bing")  # its tool has the same name
    load_plugins.cache_clear()
    model = make_tiny_model(tmp_path / "model", hidden=32, layers=2, heads=2, intermediate=64)
    data = tmp_path / "tasks.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"<search> {i}?", "answer": "1"}) + "\n" for i in range(4)))
    yield [
        f"model.path={model}", "model.device=cpu", f"data.train=[{data}]",
        f"run.root={tmp_path}", "run.name=release", "run.seed=3", "rewards=[even]", "tools=[search]",
        "rollout_step.system_prompt=never", "data.max_prompt_tokens=64", "rollout.group_size=6",
        "rollout.max_concurrent=8", "rollout.max_response_tokens=200", "engine.params.slots=8", "train.steps=2",
        "train.tasks_per_step=2", "train.minibatches=2", "policy.lr=1e-2", "trackers=[jsonl]",
    ]  # fmt: skip
    load_plugins.cache_clear()


PROBED = "branch_policy.params.enable_dynamic_rollouts=true"


@pytest.mark.parametrize(
    ("chosen", "metric"),
    [
        (["algorithm=arpo_release"], "rollout/filled_per_group"),
        (["algorithm=aepo_release", PROBED], "train/balanced_fraction"),
    ],
)
def test_two_steps_are_trained(chosen: list[str], metric: str, keys: list[str], tmp_path: Path) -> None:
    run(compose([*chosen, *keys], job="train"))
    lines = [json.loads(line) for line in (tmp_path / "release/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["train/grad_norm"] > 0 and metric in line for line in lines)
    rollouts = [rollout for step in (1, 2) for rollout in played(tmp_path / "release", step)]
    assert len(rollouts) == 24 and all(rollout["fault"] is None for rollout in rollouts)
    assert any(rollout["tool_calls"] for rollout in rollouts), "no tool was called"
    assert any(rollout["parent"] is not None for rollout in rollouts), "nothing was copied"


def played(folder: Path, step: int) -> list[dict[str, Any]]:
    with gzip.open(folder / f"rollouts/step_{step:06d}.jsonl.gz", "rt") as groups:
        return [rollout for group in groups for rollout in json.loads(group)["rollouts"]]
