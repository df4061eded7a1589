"""Adapters of `tools.jsonl`: the Python tool as the registry builds it, where the plugin is installed."""

from __future__ import annotations

import asyncio
from typing import Any

from golden_adapter import Adapter
from golden_cases import Case

from ramet.plugins import load_plugins
from ramet.types import ToolCall

# What the release says of a program that fails, in these forms, ours says in its own words.
ERRORS = ("Traceback", "File ", "执行超时")


def python(given: dict[str, Any]) -> str:
    entry = load_plugins().get("tools", "python")
    assert entry.config is not None

    async def call() -> str:
        tool = entry.build(entry.config(timeout_s=float(given["timeout"])))
        try:
            result = await tool(ToolCall(name="python", arguments={"code": given["code"]}, rollout="golden"))
        finally:
            await tool.aclose()
        assert isinstance(result.text, str)
        return result.text

    return asyncio.run(call())


def prints(case: Case) -> bool:
    """Programs that end well and print something. Ours says so when nothing was printed; the release is silent."""
    return bool(case.output) and not case.output.startswith(ERRORS) and "python" in load_plugins().registries.tools


ADAPTERS = {"python_tool.execute": Adapter(run=python, covers=prints)}
