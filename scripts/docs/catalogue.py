"""The pages of presets, recipes and packages, from the installed packages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from ramet.config import hydra_adapter
from ramet.config.recipes import recipes

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT / "core", *sorted(path.parent for path in (ROOT / "plugins").glob("*/README.md"))]
PACKAGES = {folder.name: folder.relative_to(ROOT).as_posix() for folder in FOLDERS}  # name -> folder
PRESETS = {"algorithm": "Algorithms", "policy_loss": "Losses", "cluster": "Clusters"}


def presets_page() -> str:
    """Return the page of presets: the file of each, with its comment first."""
    hydra_adapter.register()
    parts = [
        "# Presets\n\nA preset is chosen as `algorithm=NAME` and sets several keys. What is typed counts more. "
        "[Algorithms](../algorithms.md) compares them; `ramet config algorithm=NAME` prints the complete result."
    ]
    with hydra_adapter.running(None):
        for group, title in PRESETS.items():
            parts.append(f"\n## {title}")
            for name, files in sorted(hydra_adapter.files_of(group).items()):
                text = files[0].path.read_text(encoding="utf-8").strip()
                parts.append(f"\n### {group}={name}\n\nFrom {files[0].provider}.\n\n```yaml\n{text}\n```")
    return "\n".join(parts) + "\n"


def recipes_page() -> str:
    """Return the page of recipes: what each is, what it needs, and its file."""
    parts = ["# All recipes\n\nChosen with `experiment=NAME`. [Recipes](../recipes.md) says which to take.\n"]
    for recipe in recipes():
        facts = {
            "Job": f"`ramet {recipe.job}`",
            "Model": recipe.model and f"`{recipe.model}`",
            "Data": ", ".join(f"`{name}`" for name in recipe.data),
            "Hardware": recipe.hardware,
            "Reproduces": recipe.reproduces,
            "Needs": " ".join(f"`{need}`" for need in recipe.needs),
        }
        listed = "\n".join(f"* {name}: {fact}" for name, fact in facts.items() if fact)
        parts.append(
            f"## {recipe.name}\n\n{_text(recipe.description)}\n\n{listed}\n\n```yaml\n{recipe.text.strip()}\n```\n"
        )
    return "\n".join(parts)


def packages_page() -> str:
    """Return the directory of packages, each with the summary of its distribution."""
    parts = [
        "# Packages\n\nWhat this repository ships. `ramet plugins` lists what is installed; "
        "[Plugins](../plugins.md) explains how to write and publish your own.\n",
        "| package | what it is |\n|---|---|",
    ]
    for name, folder in PACKAGES.items():
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        parts.append(f"| [`{project['name']}`]({name}.md) | {_text(project['description'])} |")
    return "\n".join(parts) + "\n"


def package_navigation() -> list[str]:
    """Return the entries of the navigation."""
    return ["packages/index.md", *(f"packages/{name}.md" for name in PACKAGES)]


def _text(text: str) -> str:
    return re.sub(r"([<|*_])", r"\\\1", text)
