"""Web search and page reading as tools for Ramet. Without a run: `from ramet_tools_bing import SearchTool`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ramet import Register, Tool, hookimpl
from ramet_tools_bing.config import DeepSearchConfig, PageConfig, SearchConfig

if TYPE_CHECKING:
    from ramet_tools_bing.deep_search import DeepSearchTool
    from ramet_tools_bing.fetch_tool import FetchTool
    from ramet_tools_bing.tool import SearchTool

ramet_contract = "1"
__all__ = ["DeepSearchConfig", "DeepSearchTool", "FetchTool", "PageConfig", "SearchConfig", "SearchTool"]
_MODULES = {"SearchTool": "tool", "FetchTool": "fetch_tool", "DeepSearchTool": "deep_search"}


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("search", "ramet_tools_bing.tool:SearchTool", config=SearchConfig)
    register("fetch", "ramet_tools_bing.fetch_tool:FetchTool", config=PageConfig)
    register("deep_search", "ramet_tools_bing.deep_search:DeepSearchTool", config=DeepSearchConfig)


def __getattr__(name: str) -> Any:
    """Tools are imported when they are asked for: aiohttp takes a fifth of a second, which `ramet --help` must not."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
