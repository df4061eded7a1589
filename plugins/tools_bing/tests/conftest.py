"""Tools without the user's own keys and cache, and a service that fails in every way (`fault_server.py`)."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ramet import ToolCall, ToolResult
from ramet_tools_bing import SearchTool
from ramet_tools_bing.config import KEYS, SearchConfig

KEY = "key-3f8a1c77e2"


def load(name: str) -> ModuleType:
    """A module beside this file, which pytest does not put on the path."""
    spec = importlib.util.spec_from_file_location(f"tools_bing_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def load_module() -> Callable[[str], ModuleType]:
    return load


@pytest.fixture(scope="session")
def servers() -> ModuleType:
    """`servers.FaultServer(plan)`: an async context."""
    return load("fault_server")


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key of whoever runs the tests is used, and nothing is stored in their home."""
    for name in (*KEYS.values(), "OPENAI_API_KEY", "BRIGHTDATA_ZONE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))


class Bing:
    """Tools that ask a fault server, fast."""

    def __init__(self, servers: ModuleType, folder: Path) -> None:
        self.servers = servers
        self.folder = folder

    def options(self, url: str, **others: Any) -> SearchConfig:
        chosen = {"cache_folder": str(self.folder), "per_s": 1000.0, "concurrent": 300, **others}
        return SearchConfig(provider="brightdata", url=url, **chosen)

    def session(
        self, plan: Callable[[str, int], str], steps: Callable[[SearchTool, Any], Awaitable[Any]], **options: Any
    ) -> Any:
        """Run `steps(tool, server)` in a loop of its own."""

        async def run() -> Any:
            async with self.servers.FaultServer(plan) as server:
                tool = SearchTool(self.options(server.url, **options))
                try:
                    return await steps(tool, server)
                finally:
                    await tool.aclose()

        return asyncio.run(run())

    @staticmethod
    async def call(tool: Any, query: str, deadline_s: float | None = 20.0) -> ToolResult:
        arguments = {"query": query}
        result: ToolResult = await tool(ToolCall(name="search", arguments=arguments, deadline_s=deadline_s))
        return result


@pytest.fixture
def bing(servers: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bing:
    monkeypatch.setattr("ramet_tools_bing.service.BACKOFF_S", 0.01)
    monkeypatch.setenv("BRIGHTDATA_API_KEY", KEY)
    return Bing(servers, tmp_path / "cache")
