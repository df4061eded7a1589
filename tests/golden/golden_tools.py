"""Adapters of `tools.jsonl`: the Python tool as the registry builds it, where the plugin is installed."""

from __future__ import annotations

import asyncio
from typing import Any

from golden_adapter import Adapter
from golden_cases import Case

from ramet.plugins import load_plugins
from ramet.types import ToolCall


def python(given: dict[str, Any]) -> str:
    entry = load_plugins().get("tools", "python")
    assert entry.config is not None

    async def call() -> str:
        tool = entry.build(entry.config(timeout_s=float(given["timeout"]), preload=[]))
        try:
            result = await tool(ToolCall(name="python", arguments={"code": given["code"]}, rollout="golden"))
        finally:
            await tool.aclose()
        assert isinstance(result.text, str)
        return result.text

    return asyncio.run(call())


def is_installed(case: Case) -> bool:
    return "python" in load_plugins().registries.tools


ADAPTERS = {"python_tool.execute": Adapter(run=python, covers=is_installed)}
