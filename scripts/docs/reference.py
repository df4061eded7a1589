"""The generated reference of the site: every page, and the parts of the navigation that follow from it."""

from __future__ import annotations

from functools import cache

from catalogue import PACKAGES, package_navigation, packages_page, presets_page, recipes_page
from commands import commands_page
from files import files_page
from gallery import PAGE, page, reports
from keys import key_navigation, key_pages
from variables import variables_page

__all__ = ["NAVIGATION", "PACKAGES", "links", "pages", "reports"]

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
        PAGE: page(),
        **{f"reference/{name}.md": _modules(*page) for name, page in MODULES.items()},
    }


def links() -> str:
    """Return the generated pages as a list of links, for the site's home."""
    titles = {uri: text.partition("\n")[0].removeprefix("# ") for uri, text in pages().items()}
    listed = [f"[{title}]({uri})" for uri, title in titles.items() if not uri.startswith("reference/keys/")]
    return f"* [Keys](reference/keys/index.md), by section\n* {', '.join(listed)}"


def _modules(title: str, introduction: str, modules: tuple[str, ...]) -> str:
    parts = [f"# {title}\n\n{introduction}\n"]
    for module in modules:
        heading = f"## `{module}`\n\n" if len(modules) > 1 else ""
        level = f"\n    options:\n      heading_level: {3 if heading else 2}"
        parts.append(f"{heading}::: {module}{level}\n")
    return "\n".join(parts)
