"""Two steps of `ramet train algorithm=aepo_release` on a tiny model, and what the released rule refuses."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ramet import AdvantageInputs, ConfigError, StopReason
from ramet.config.compose import compose
from ramet.models.tiny import make_tiny_model
from ramet.plugins import load_plugins
from ramet.rollout.lockstep.policy import BranchDraw
from ramet.testing import check_plugin
from ramet.train.training import run
from ramet_aepo.release.advantage import AepoSoftmax
from ramet_aepo.release.branching import AepoRelease
from ramet_aepo.release.config import AepoReleaseConfig, AepoSoftmaxConfig

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
        "algorithm=aepo_release", f"model.path={model}", "model.device=cpu", f"data.train=[{data}]",
        f"run.root={tmp_path}", "run.name=release", "run.seed=3", "rewards=[even]", "tools=[search]",
        "rollout_step.system_prompt=never", "data.max_prompt_tokens=64", "rollout.group_size=6",
        "rollout.max_concurrent=8", "rollout.max_response_tokens=200", "engine.params.slots=8", "train.steps=2",
        "train.tasks_per_step=2", "train.minibatches=2", "policy.lr=1e-2", "trackers=[jsonl]",
        "branch_policy.params.enable_dynamic_rollouts=true",
    ]  # fmt: skip
    load_plugins.cache_clear()


def test_two_steps_are_trained(keys: list[str], tmp_path: Path) -> None:
    run(compose(keys, job="train"))
    lines = [json.loads(line) for line in (tmp_path / "release/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["train/grad_norm"] > 0 for line in lines)
    assert all("train/balanced_fraction" in line for line in lines)
    rollouts = [rollout for step in (1, 2) for rollout in played(tmp_path / "release", step)]
    assert len(rollouts) == 24 and all(rollout["fault"] is None for rollout in rollouts)
    assert any(rollout["tool_calls"] for rollout in rollouts), "no tool was called"
    assert any(rollout["parent"] is not None for rollout in rollouts), "nothing was copied"


def played(folder: Path, step: int) -> list[dict[str, Any]]:
    with gzip.open(folder / f"rollouts/step_{step:06d}.jsonl.gz", "rt") as groups:
        return [rollout for group in groups for rollout in json.loads(group)["rollouts"]]


def test_the_plugin_conforms() -> None:
    assert check_plugin("aepo_release")


@pytest.mark.parametrize(
    ("draw", "now", "consecutive", "branches"),
    [(0.4, 1.0, 0, False), (0.6, 1.0, 0, True), (0.41, 1.5, 0, True), (0.6, 1.0, 10, True), (0.99, 1.0, 11, False)],
)
def test_the_draw_is_the_other_way_round_and_penalised(
    draw: float, now: float, consecutive: int, branches: bool
) -> None:
    """Hand-computed, against a base of 1: (U + 0.2 (H - 1)) (1 - 0.05 c) >= p; p is 0.25 for c = 10, else 0.5."""
    policy = AepoRelease(AepoReleaseConfig(branch_probability=0.25 if consecutive == 10 else 0.5))
    assert policy.branches(BranchDraw(draw=draw, now=now, base=1.0, consecutive=consecutive)) is branches


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"initial_rollouts": 0}, "initial_rollouts must be at least 1, got 0"),
        ({"beam_size": 0}, "beam_size must be at least 1, got 0"),
        ({"initial_entropy_tokens": 0}, "initial_entropy_tokens must be at least 1, got 0"),
        ({"branch_probability": 1.5}, "branch_probability must be in [0, 1], got 1.5"),
        (
            {"enable_dynamic_rollouts": True, "initial_rollouts": 2},
            "initial_rollouts is 2, but with enable_dynamic_rollouts=true the probe says how many rows start; leave "
            "one of them out",
        ),
    ],
)
def test_options_that_cannot_be_are_refused(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        AepoReleaseConfig(**bad)
    assert str(caught.value) == message


def inputs(entropies: torch.Tensor | None) -> AdvantageInputs:
    """Two rollouts of a group, with rewards 1 and 0; the second trains one token."""
    zeros = torch.zeros(2, 3)
    return AdvantageInputs(
        rewards=torch.tensor([1.0, 0.0]),
        reward_parts={},
        mask=torch.tensor([[True, True, False], [False, True, False]]),
        group_ids=torch.zeros(2, dtype=torch.int64),
        turn_ids=zeros.long(),
        node_ids=torch.arange(6).view(2, 3),
        parent=torch.full((2,), -1),
        fork_position=torch.zeros(2, dtype=torch.int64),
        stop=[StopReason.END] * 2,
        n_tool_calls=torch.zeros(2, dtype=torch.int64),
        engine_logprobs=zeros,
        policy_versions=zeros.long(),
        entropies=entropies,
    )


def test_the_documented_weights_are_a_softmax_over_a_rollouts_trained_tokens() -> None:
    """Hand-computed: exp(0) : exp(ln 3) = 1 : 3, times the two tokens; centred rewards are +-0.5."""
    entropies = torch.tensor([[0.0, math.log(3), 9.0], [9.0, 5.0, 9.0]])
    found = AepoSoftmax(AepoSoftmaxConfig(normalize_std=False))(inputs(entropies)).advantages
    assert torch.allclose(found, torch.tensor([[0.25, 0.75, 0.0], [0.0, -0.5, 0.0]]))


def test_weights_without_entropies_are_an_error_and_not_silence() -> None:
    with pytest.raises(ConfigError) as caught:
        AepoSoftmax(AepoSoftmaxConfig())(inputs(None))
    assert str(caught.value) == "advantage: aepo_softmax needs the entropies of tokens, and the batch has none"
    with pytest.raises(ValueError) as wrong:
        AepoSoftmaxConfig(temperature=0.0)
    assert str(wrong.value) == "temperature must be above 0, got 0"
