"""The generated reference of the site: every page, and the parts of the navigation that follow from it."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from catalogue import PACKAGES, package_navigation, packages_page, presets_page, recipes_page
from commands import commands_page
from files import files_page
from keys import key_navigation, key_pages
from variables import variables_page

import ramet
from ramet.report.html import write_report

__all__ = ["NAVIGATION", "PACKAGES", "REPORT", "links", "pages", "report_of_demo"]

REPORT = "gallery/smollm2.html"
RECORDING = Path(ramet.__file__).parent / "demo" / "quickstart_smollm2"  # of `ramet demo`

NAVIGATION = {"keys": key_navigation, "packages": package_navigation}
TYPES = (
    "task", "step", "tool", "tool_schema", "rollout", "reward", "branch", "algorithm", "benchmark", "state", "tracker",
    "doctor", "option",
)  # fmt: skip
# Page -> (title, introduction, modules), whose docstrings and signatures mkdocstrings writes.
MODULES = {
    "hooks": (
        "Hooks",
        "The seven hooks of a plugin. [Plugins](../plugins.md) has an example of each kind.",
        ("ramet.plugins.hookspecs",),
    ),
    "types": (
        "Types of the contract",
        "What plugins and the core exchange. `from ramet import NAME` imports each.",
        tuple(f"ramet.types.{name}" for name in TYPES),
    ),
    "helpers": (
        "Helpers for plugins",
        "What the core shares with plugins. `from ramet import NAME` imports each.",
        ("ramet.helpers", "ramet.errors"),
    ),
    "api": ("Python", "What notebooks and programs call. [From Python](../python.md) shows its use.", ("ramet.api",)),
    "testing": (
        "Conformance checks",
        "What a plugin's tests call. [The conformance kit](../conformance.md) says what each check does.",
        ("ramet.testing",),
    ),
}


@cache
def pages() -> dict[str, str]:
    """Return every generated page: place in the site -> Markdown. It takes seconds, once."""
    return {
        **key_pages(),
        "reference/commands.md": commands_page(),
        "reference/variables.md": variables_page(),
        "reference/files.md": files_page(),
        "reference/presets.md": presets_page(),
        "reference/recipes.md": recipes_page(),
        "packages/index.md": packages_page(),
        **{f"reference/{name}.md": _modules(*page) for name, page in MODULES.items()},
    }


def links() -> str:
    """Return the generated pages as a list of links, for the site's home."""
    titles = {uri: text.partition("\n")[0].removeprefix("# ") for uri, text in pages().items()}
    listed = [f"[{title}]({uri})" for uri, title in titles.items() if not uri.startswith("reference/keys/")]
    report = f"[A report]({REPORT}) of the run that `ramet demo` replays"
    return f"* [Keys](reference/keys/index.md), by section\n* {', '.join(listed)}\n* {report}"


def report_of_demo() -> str:
    """Return the HTML report of the recorded run that is part of the core."""
    with tempfile.TemporaryDirectory() as folder:
        return write_report(RECORDING, Path(folder) / "report.html").read_text(encoding="utf-8")


def _modules(title: str, introduction: str, modules: tuple[str, ...]) -> str:
    parts = [f"# {title}\n\n{introduction}\n"]
    for module in modules:
        heading = f"## `{module}`\n\n" if len(modules) > 1 else ""
        level = f"\n    options:\n      heading_level: {3 if heading else 2}"
        parts.append(f"{heading}::: {module}{level}\n")
    return "\n".join(parts)
