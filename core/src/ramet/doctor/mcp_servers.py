"""Whether the MCP servers of a configuration start and list their tools: what `ramet doctor` says of each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from ramet.components.toolbox import OPEN_TIMEOUT_S
from ramet.config.schema import Config
from ramet.errors import RametError
from ramet.event_loop import run_async
from ramet.plugins import load_plugins
from ramet.rollout.config import McpConfig
from ramet.types import Finding, Severity, ToolSet


def check_mcp_servers(config: Config, *, offline: bool) -> Iterator[Finding]:
    """Start each server, ask it for its tools, and end it. With `offline` none is started: it may use the network."""
    for name, settings in config.tools.items():
        if not isinstance(settings.params, McpConfig):
            continue
        what = f"tools.{name}"
        if offline:
            yield Finding(what=what, severity=Severity.NOTE, text="the MCP server was not started (--offline)")
            continue
        try:
            server = load_plugins().get("tools", settings.use or name).build(settings.params, key=what)
            tool_names = run_async(_tools(server))
        except (RametError, TimeoutError) as error:
            fix = f"see {what}.params, and try it: ramet tool call"
            text = str(error) or f"the MCP server did not list its tools within {OPEN_TIMEOUT_S:g} s"
            yield Finding(what=what, severity=Severity.PROBLEM, text=text, fix=fix)
        else:
            listed = ", ".join(tool_names) or "none"
            yield Finding(what=what, severity=Severity.OK, text=f"the MCP server offers: {listed}")


async def _tools(server: ToolSet) -> list[str]:
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            return [tool.schema.name for tool in await server.open()]
    finally:
        await server.aclose()
