"""Shared by the core's tests, which also run where no other package of this repository is installed."""

from __future__ import annotations

import pytest

from ramet import function_tool
from ramet.plugins import load_plugins
from ramet.registry import Entry


def python(code: str) -> str:
    """Returns its input."""
    return code


@pytest.fixture
def python_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool `python`, also where ramet-tools-python is not installed."""
    registry = load_plugins().registries.tools
    others = {name: entry for name, entry in registry._entries.items() if name != "python"}
    monkeypatch.setattr(registry, "_entries", others)
    registry.add(
        Entry(
            kind=registry.kind,
            name="python",
            factory=lambda: function_tool(python),
            config=None,
            plugin="test",
            distribution="test",
        )
    )
