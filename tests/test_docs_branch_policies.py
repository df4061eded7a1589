"""docs/branch_policies.md is true: its policy keeps the contract and plays as it says, its tables are complete."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import ramet
from ramet import ConfigError, Group, Need, Rollout, RolloutScore, Task, user_prompt
from ramet.components.checks import GIVEN
from ramet.config.compose import compose
from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.plugins import load_plugins
from ramet.rollout.branching.builtin import NoBranching, RandomBranching
from ramet.rollout.branching.stored_prefix import StoredPrefixes
from ramet.rollout.branching.token_entropy import TokenEntropy
from ramet.rollout.branching.value_guided import ValueGuided
from ramet.rollout.config import (
    RandomBranchConfig,
    StoredPrefixConfig,
    TagsConfig,
    TokenEntropyConfig,
    ValueGuidedConfig,
)
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.testing import ScriptedEngine, check_plugin, echo_tool, tiny_encoder
from ramet_arpo.branching import Arpo
from ramet_arpo.config import ArpoConfig

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/branch_policies.md").read_text(encoding="utf-8")
((FILE, CODE),) = re.findall(r"^`(src/[\w./]+)`\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
NAME = "ramet_second_chance"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The page's module, imported and offered as a plugin."""
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path / "src")
    monkeypatch.setenv("RAMET_PLUGINS", NAME)
    load_plugins.cache_clear()
    yield importlib.import_module(NAME)
    load_plugins.cache_clear()
    sys.modules.pop(NAME, None)


def play(policy: Any, right: set[str], **config: Any) -> Group:
    """Rollouts of two tool calls; those in `right` have the reward 1."""

    def script(task: str, path: str, turn: int) -> str:
        return f"<python>{path} {turn}</python>" if turn < 2 else f"<answer>{path}</answer>"

    async def score(rollout: Rollout) -> RolloutScore:
        return RolloutScore(reward=float(rollout.id in right))

    async def main() -> Group:
        encoder = tiny_encoder()
        worker = RolloutWorker(
            engine=ScriptedEngine(script, encoder),
            encoder=encoder,
            step=Tags(TagsConfig()),
            branch_policy=policy,
            tools={"python": (echo_tool(), ToolConfig())},
            config=RolloutConfig(**config),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=True,
            score=score,
        )
        [group] = await worker.run(RolloutRequest(tasks=[Task(id="t", prompt=user_prompt("?"))], step=1))
        await worker.close()
        return group

    return asyncio.run(main())


def test_the_example_keeps_the_contract_and_is_chosen_by_its_name(example: Any) -> None:
    check_plugin(NAME)
    chosen = ["model.path=m", "branch_policy=second_chance", "branch_policy.params.enough=3"]
    config = compose(chosen, job="train").config.branch_policy
    assert (config.name, config.params) == ("second_chance", example.SecondChanceConfig(enough=3))


def test_failed_rollouts_are_begun_again_at_their_last_turn(example: Any) -> None:
    policy = example.SecondChance(example.SecondChanceConfig())
    group = play(policy, {"0"}, group_size=6)
    assert [(one.id, one.fork_turn) for one in group.rollouts] == [
        ("0", None), ("1", None), ("1.0", 2), ("1.0.0", 2), ("1.0.0.0", 2), ("2", None),
    ]  # fmt: skip


def test_the_group_ends_once_enough_are_right(example: Any) -> None:
    group = play(example.SecondChance(example.SecondChanceConfig()), {"0", "1"}, group_size=8)
    assert (len(group.rollouts), group.n_unused) == (3, 5)


def test_options_that_do_not_fit_are_told_at_the_start(example: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        play(example.SecondChance(example.SecondChanceConfig(initial_rollouts=9)), set(), group_size=8)
    assert str(raised.value).startswith("branch_policy.params.initial_rollouts: 9 ")


def table(heading: str) -> list[str]:
    """First cells of the table under this heading."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)


def test_events_actions_and_needs_are_all_there() -> None:
    def names(cells: list[str]) -> set[str]:
        return {cell.partition("(")[0] for cell in cells}

    assert names(table("Events")) == {one.__name__ for one in get_args(ramet.BranchEvent)}
    assert names(table("Actions")) == {one.__name__ for one in get_args(ramet.BranchAction)}
    listed = {Need[cell.removeprefix("Need.")] for cell in table("What it needs") if cell != "needs"}
    assert listed == GIVEN["branch_policy"]
    for event in get_args(ramet.BranchEvent):
        fields = [field.name for field in dataclasses.fields(event)]
        cell = next(cell for cell in table("Events") if cell.partition("(")[0] == event.__name__)
        assert re.findall(r"\w+", cell)[1:] == fields


POLICIES = {
    "none": lambda n: NoBranching(),
    "random": lambda n: RandomBranching(RandomBranchConfig(initial_rollouts=n)),
    "value_guided": lambda n: ValueGuided(ValueGuidedConfig(initial_rollouts=n)),
    "token_entropy": lambda n: TokenEntropy(TokenEntropyConfig(initial_rollouts=n)),
    "stored_prefix": lambda n: StoredPrefixes(StoredPrefixConfig()),
    "arpo": lambda n: Arpo(ArpoConfig(initial_rollouts=n, tau=0.4)),
}


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("right", [set(), {"0", "1"}], ids=["all fail", "some are right"])
def test_policies_and_their_controls_play_the_same_budget(name: str, right: set[str]) -> None:
    group = play(POLICIES[name](3), right, group_size=7)
    assert (len(group.rollouts), group.n_unused) == (7, 0)
    at_once = [one for one in group.rollouts if one.parent is None and "filled" not in one.stats]
    assert len(at_once) == (7 if name in ("none", "stored_prefix") else 3)
