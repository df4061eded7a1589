"""Puts the recipes into what is built: the source is `hydra_configs/` of the repository, outside of this package.

A wheel has them in `ramet/hydra_configs`, a source distribution in `hydra_configs`, from which its wheel is built. An
editable install gets no copy: `ramet.config.recipes` finds the repository's folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "hydra_configs"


class RecipesHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling is there in builds alone
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        here = Path(self.root)
        found = [folder for folder in (here / FOLDER, here.parent / FOLDER) if folder.is_dir()]
        if not found:
            raise FileNotFoundError(f"no folder {FOLDER}: neither in {here} nor beside it; build in a whole checkout")
        target = FOLDER if self.target_name == "sdist" else f"ramet/{FOLDER}"
        for recipe in found[0].rglob("*.yaml"):  # each by itself: what else is in the folder is no recipe
            build_data["force_include"][str(recipe)] = f"{target}/{recipe.relative_to(found[0]).as_posix()}"
