"""Two steps of `ramet train algorithm=arpo_release` on a tiny model, and what the released rule refuses."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet.components.build import Components
from ramet.components.checks import check_needs
from ramet.config.compose import compose
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.rollout.lockstep.policy import BranchDraw
from ramet.testing import check_plugin
from ramet.train.training import run
from ramet_arpo.release.branching import ArpoRelease
from ramet_arpo.release.config import ArpoReleaseConfig, ReleaseRule

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
        "algorithm=arpo_release", f"model.path={model}", "model.device=cpu", f"data.train=[{data}]",
        f"run.root={tmp_path}", "run.name=release", "run.seed=3", "rewards=[even]", "tools=[search]",
        "rollout_step.system_prompt=never", "data.max_prompt_tokens=64", "rollout.group_size=6",
        "rollout.max_concurrent=8", "rollout.max_response_tokens=200", "engine.params.slots=8", "train.steps=2",
        "train.tasks_per_step=2", "train.minibatches=2", "policy.lr=1e-2", "trackers=[jsonl]",
    ]  # fmt: skip
    load_plugins.cache_clear()


def test_two_steps_are_trained(keys: list[str], tmp_path: Path) -> None:
    run(compose(keys, job="train"))
    lines = [json.loads(line) for line in (tmp_path / "release/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["train/grad_norm"] > 0 for line in lines)
    assert any(line["rollout/filled_per_group"] > 0 for line in lines)
    rollouts = [rollout for step in (1, 2) for rollout in played(tmp_path / "release", step)]
    assert len(rollouts) == 24 and all(rollout["fault"] is None for rollout in rollouts)
    assert any(rollout["tool_calls"] for rollout in rollouts), "no tool was called"
    assert any(rollout["parent"] is not None for rollout in rollouts), "nothing was copied"


def played(folder: Path, step: int) -> list[dict[str, Any]]:
    with gzip.open(folder / f"rollouts/step_{step:06d}.jsonl.gz", "rt") as groups:
        return [rollout for group in groups for rollout in json.loads(group)["rollouts"]]


def test_the_plugin_conforms() -> None:
    assert check_plugin("arpo_release")


@pytest.mark.parametrize(
    ("draw", "now", "branches"), [(0.4, 0.3, True), (0.6, 0.3, False), (0.4, 0.02, False), (0.499, 0.11, True)]
)
def test_the_documented_rule_asks_for_threshold_and_draw(draw: float, now: float, branches: bool) -> None:
    """Hand-computed: 0.2 * 0.5 = 0.1 must be exceeded, and the draw be under 0.5."""
    policy = ArpoRelease(ArpoReleaseConfig(rule=ReleaseRule.THRESHOLD_AND_DRAW))
    assert policy.branches(BranchDraw(draw=draw, now=now, base=0.5)) is branches


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"initial_rollouts": 0}, "initial_rollouts must be at least 1, got 0"),
        ({"beam_size": 0}, "beam_size must be at least 1, got 0"),
        ({"branch_probability": 1.5}, "branch_probability must be in [0, 1], got 1.5"),
    ],
)
def test_options_that_cannot_be_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        ArpoReleaseConfig(**bad)
    assert str(caught.value) == message


def test_rounds_cannot_be_shuffled() -> None:
    chosen = ["model.path=m", "branch_policy=shuffled", "branch_policy.params.policy=arpo_release"]
    config = compose(chosen, job="train").config
    found = [one for one in check_needs(Components(config), config) if "policy" in one]
    assert found == [
        "branch_policy.params.policy: arpo_release plays in rounds, which cannot be shuffled; choose a policy that is "
        "asked event by event, such as arpo or aepo"
    ]
