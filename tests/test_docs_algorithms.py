"""docs/algorithms.md is complete and true: registered algorithms with their options, presets with what they choose."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.config.hydra_adapter import group_options
from ramet.config.schema import Config, TrainConfig
from ramet.plugins import load_plugins

PAGE = (Path(__file__).resolve().parents[1] / "docs/algorithms.md").read_text(encoding="utf-8")
SECTIONS = {"advantages": "Advantages", "policy_losses": "Losses"}
IN_READMES = {"arpo", "aepo", "arpo_release", "aepo_release"}


def rows(section: str) -> dict[str, list[str]]:
    """First cell without its backticks -> the other cells, of the section's table."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split(" |")] for line in text.splitlines() if line[:3] == "| `"]
    found = {first.strip("` |").replace("`", ""): others for first, *others in cells}
    return {name: others for name, others in found.items() if not name.endswith("=")}  # without the table's head


@pytest.mark.parametrize("kind", SECTIONS)
def test_every_algorithm_has_one_row_with_its_options_and_its_source(kind: str) -> None:
    found = rows(SECTIONS[kind])
    entries = {entry.name: entry for entry in getattr(load_plugins().registries, kind)}
    assert set(found) == set(entries)
    for name, (formula, options, source) in found.items():
        config = entries[name].config
        expected = [] if config is None else [field.name for field in dataclasses.fields(config)]
        assert re.findall(r"`(\w+)`", options) == expected, name
        assert formula and source


def test_every_branch_policy_has_one_row_with_its_options() -> None:
    found = rows("Branch policies")
    entries = {entry.name: entry for entry in load_plugins().registries.branch_policies}
    assert set(found) - IN_READMES == set(entries) - IN_READMES
    assert {"arpo", "aepo"} <= set(found)
    for name, (_, options, _) in found.items():
        if name not in IN_READMES:
            config = entries[name].config
            expected = [] if config is None else [field.name for field in dataclasses.fields(config)]
            assert re.findall(r"`(\w+)`", options) == expected, name


def test_every_preset_has_a_row_with_what_it_chooses() -> None:
    found = rows("Presets")
    assert set(found) == set(group_options(["algorithm"])["algorithm"])
    for name, (branch_policy, advantage, loss, _) in found.items():
        config = compose(["model.path=m", f"algorithm={name}"], job="train").config
        chosen = (config.branch_policy.name, config.advantage.name, config.policy_loss.name)
        assert chosen == (branch_policy.strip("`"), advantage.strip("`"), loss.strip("`"))
        assert _unmentioned(config, name) == set()


def _unmentioned(config: Config, name: str) -> set[str]:
    """Keys of `train` that the preset changes and its row does not name."""
    row = next(line for line in PAGE.partition("\n## Presets\n")[2].splitlines() if line.startswith(f"| `{name}` "))
    if name in ("aepo", "arpo", "aepo_release", "arpo_release"):  # their READMEs have them
        return set()
    changed = {
        field.name
        for field in dataclasses.fields(TrainConfig)
        if getattr(config.train, field.name) != getattr(TrainConfig(), field.name)
    }
    return {key for key in changed if key not in row and not (name == "gspo_turn" and key == "loss_aggregation")}


def test_the_keys_of_the_page_are_keys() -> None:
    names = {field.name for field in dataclasses.fields(TrainConfig)}
    assert set(re.findall(r"`train\.(\w+)[=`]", PAGE)) <= names
