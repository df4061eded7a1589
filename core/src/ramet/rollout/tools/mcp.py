"""MCP servers as tool sets: one entry of the configuration is one server, and all its tools become tools.

The official client library speaks the protocol (modelcontextprotocol.io); it is imported when a server is opened. A
server that has ended is started again by the next call. Errors of a tool (`isError`) and arguments that the server
refuses are text for the model; failures of the connection are infrastructure failures.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal

from ramet.errors import ConfigError, InfraError, ToolError
from ramet.helpers import neutralise_chat_markup
from ramet.plugins.instance_keys import instance_key
from ramet.rollout.config import McpConfig
from ramet.rollout.tools.mcp_connection import McpConnection, McpFailure, McpRefusal
from ramet.types import Task, Tool, ToolCall, ToolResult, ToolSchema

ALL = "all"  # of a server's tools
NAME = re.compile(r"[A-Za-z0-9_./-]{1,128}")  # as the protocol has them
NOT_INSTALLED = "the package 'mcp' is not installed; install it with: pip install 'ramet[mcp]'"


class McpServer:
    """`ToolSet`. With `state=shared` one connection serves all rollouts of a worker, otherwise each has its own."""

    def __init__(self, config: McpConfig) -> None:
        self.config = config
        self.key = instance_key("tools.mcp")
        self.who = f"MCP server {self.key} ({config.name})"
        self._connection: McpConnection | None = None
        self._connecting = asyncio.Lock()
        self._sessions = McpSessions(config, self.who)

    async def open(self) -> Sequence[Tool]:
        """The server's tools in its order. Raises `ConfigError` for packages, programs and tools that there are not."""
        if find_spec("mcp") is None:
            raise ConfigError(f"{self.who}: {NOT_INSTALLED}")
        if self.config.command and shutil.which(self.config.command[0]) is None:
            raise ConfigError(
                f"{self.who}: there is no program {self.config.command[0]!r}; see {self.key}.params.command"
            )
        try:
            offered = await (await self.connection()).tools()
        except (McpFailure, McpRefusal) as error:
            raise InfraError(f"{self.who}: {error}") from error
        return [self._tool(tool) for tool in self._chosen(offered)]

    def _chosen(self, offered: Sequence[Any]) -> list[Any]:
        names = [tool.name for tool in offered]
        for option, wanted in (("tools", self.config.tools), ("read_only", [*{*self.config.read_only} - {ALL}])):
            if unknown := [name for name in wanted if name not in names]:
                raise ConfigError(
                    f"{self.who}: params.{option} names {', '.join(map(repr, unknown))}; the server offers: "
                    f"{', '.join(names) or 'none'}"
                )
        used = [tool for tool in offered if not self.config.tools or tool.name in self.config.tools]
        odd = [tool.name for tool in used if NAME.fullmatch(tool.name) is None]
        if odd:
            raise ConfigError(
                f"{self.who}: names of tools that no format can carry: {', '.join(f'{name!r:.80}' for name in odd)}; "
                "allowed: 1 to 128 letters, digits and _ - . /; choose others with params.tools"
            )
        return used

    def _tool(self, offered: Any) -> Tool:
        hints, read_only = offered.annotations, self.config.read_only
        declared = ALL in read_only or offered.name in read_only
        schema = ToolSchema(
            name=f"{self.config.prefix}{offered.name}",
            description=neutralise_chat_markup(offered.description or offered.title or ""),
            parameters=_parameters(offered.input_schema),
            idempotent=declared or bool(hints is not None and (hints.read_only_hint or hints.idempotent_hint)),
        )
        if self.config.state == "shared":
            return McpTool(self, offered.name, schema)
        return StatefulMcpTool(self, offered.name, schema, self._sessions)

    async def connection(self) -> McpConnection:
        """The one that all rollouts share; a new one if it has ended. Raises `InfraError`."""
        async with self._connecting:
            if self._connection is None or not (self._connection.is_open and await self._connection.answers()):
                if self._connection is not None:
                    await self._connection.close()
                self._connection = await connect(self.config, self.who)
            return self._connection

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class McpTool:
    """One tool of a server."""

    def __init__(self, server: McpServer, name: str, schema: ToolSchema) -> None:
        self.schema = schema
        self._server = server
        self._name = name  # as the server knows it

    async def __call__(self, call: ToolCall) -> ToolResult:
        return await self._ask(await self._server.connection(), call)

    async def _ask(self, connection: McpConnection, call: ToolCall) -> ToolResult:
        try:
            result = await connection.call(self._name, dict(call.arguments))
        except McpRefusal as error:
            raise ToolError(str(error)) from error
        except McpFailure as error:
            again = f"; not called again, as it may have run: if {self._name} only reads, name it in params.read_only"
            again = "" if self.schema.idempotent else again
            raise InfraError(f"{self._server.who}: {error}{again}") from error
        return ToolResult(text=_text(result), error=bool(result.is_error))


class StatefulMcpTool(McpTool):
    """One tool of a server that each rollout has for itself: the tools of a server share the rollout's connection."""

    def __init__(self, server: McpServer, name: str, schema: ToolSchema, sessions: McpSessions) -> None:
        super().__init__(server, name, schema)
        self.state_owner = sessions

    async def __call__(self, call: ToolCall) -> ToolResult:
        return await self._ask(call.state, call)


class McpSessions:
    """`Stateful`: a server (or, over HTTP, a session with it) for each rollout."""

    def __init__(self, config: McpConfig, who: str) -> None:
        self.config = config
        self._who = who
        self.forks: Literal["copy", "replay", "none"] = "replay" if config.state == "replayable" else "none"

    async def open(self, task: Task, seed: int) -> McpConnection:
        return await connect(self.config, self._who)

    async def close(self, state: McpConnection) -> None:
        await state.close()


async def connect(config: McpConfig, who: str) -> McpConnection:
    """Raises `InfraError` if the server does not answer; `who` names it."""
    try:
        return await McpConnection.open(config)
    except McpFailure as error:
        raise InfraError(f"{who}: {error}") from error


def _neutral(value: Any) -> Any:
    """JSON with the same keys and texts without chat markup: they are part of the prompt, where it would be parsed."""
    if isinstance(value, Mapping):
        return {neutralise_chat_markup(str(key)): _neutral(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_neutral(part) for part in value]
    return neutralise_chat_markup(value) if isinstance(value, str) else value


def _parameters(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without special tokens; `true` for what may be anything is spelled as an object, or `true`."""
    neutral: dict[str, Any] = _neutral(schema)
    if neutral.get("additionalProperties") == {}:
        neutral["additionalProperties"] = True
    if "properties" in neutral:
        specs = neutral["properties"] or {}
        neutral["properties"] = {name: spec if isinstance(spec, dict) else {} for name, spec in specs.items()}
    if neutral.get("required", []) is None:
        del neutral["required"]
    return neutral


def _text(result: Any) -> str:
    """Texts of a result one below the other; other content is named by its kind."""
    parts = [_part(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)


def _part(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and getattr(block.resource, "text", None) is not None:
        return str(block.resource.text)
    if block.type == "resource_link":
        return str(block.uri)
    return f"[{block.type}]"
