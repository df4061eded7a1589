"""The recipes of `hydra_configs/` say what they need, and need what they say."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest

import ramet
from ramet.config.compose import compose, layers
from ramet.config.hydra_adapter import shipped_recipes
from ramet.config.needs import needs_of
from ramet.plugins import load_plugins
from ramet.plugins.sources import PRESETS

ROOT = Path(__file__).resolve().parents[1]
RECIPES = sorted((ROOT / "hydra_configs/experiment").glob("*.yaml"))
EXTRAS = {("engine", "vllm"): "vllm", ("cluster", "ray"): "ray"}


def distributions(recipe: str) -> set[str]:
    """Of everything that the recipe chooses, beside the core."""
    owner = {info.name: info.distribution for info in load_plugins().infos}
    owner |= {point.name: point.dist.name for point in entry_points(group=PRESETS) if point.dist is not None}
    made = layers([f"experiment={recipe}", "model.path=m"], job="train").layers
    registries = load_plugins().registries
    chosen = {owner[one.provider] for one in made if one.provider in owner}
    config = compose([f"experiment={recipe}", "model.path=m"], job="train").config
    for kind, names in (("tools", config.tools), ("rewards", config.rewards), ("benchmarks", config.benchmarks)):
        chosen |= {getattr(registries, kind).get(name).distribution for name in names}
    return chosen - {"ramet"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_what_a_recipe_needs_is_what_it_chooses(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    core, *others = needs_of(path.read_text())
    config = compose([f"experiment={path.stem}", "model.path=m"], job="train").config
    extras = [extra for (group, name), extra in EXTRAS.items() if getattr(config, group).name == name]
    assert core == f"ramet[{','.join(['train', *sorted(extras)])}]"
    assert {need.partition("[")[0] for need in others} == distributions(path.stem)  # they may name extras


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_begins_with_one_line_about_it(path: Path) -> None:
    package, description, needs = path.read_text().splitlines()[:3]
    assert (package, needs.partition(":")[0]) == ("# @package _global_", "# Needs")
    assert description.startswith("# ") and description.endswith(".")


def test_an_editable_install_finds_the_folder_of_the_repository() -> None:
    """Of the one that is installed: these tests may be those of a copy (`scripts/test_without_shared.sh`)."""
    assert shipped_recipes() == Path(ramet.__file__).parents[3] / "hydra_configs"
