"""Tools without the user's own keys and cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ramet_tools_bing.config import KEYS, SUMMARY_KEY, SearchConfig


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key of whoever runs the tests is used, and nothing is stored in their home."""
    for name in (*KEYS.values(), SUMMARY_KEY, "BRIGHTDATA_ZONE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


@pytest.fixture
def brightdata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SearchConfig]:
    """Options of a tool that asks a fault server, fast: `brightdata(url, **options)`."""
    monkeypatch.setattr("ramet_tools_bing.service.BACKOFF_S", 0.01)
    monkeypatch.setenv("BRIGHTDATA_API_KEY", "key-3f8a1c77e2")

    def options(url: str, **others: Any) -> SearchConfig:
        chosen = {"cache_folder": str(tmp_path / "cache"), "per_s": 1000.0, "concurrent": 300, **others}
        return SearchConfig(provider="brightdata", url=url, **chosen)

    return options
