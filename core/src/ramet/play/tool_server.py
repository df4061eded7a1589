"""`ramet tool serve`: tools as an MCP server, for agents that run their own loop.

The official library speaks the protocol, over standard input and output or over HTTP. A connection is a session, with
states of its own. The protocol of 2026-07-28 has no sessions over HTTP, so tools with states are served there in the
protocols before it, which have them.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, NamedTuple, TypeAlias

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

import ramet
from ramet.config.resolved import Resolved
from ramet.config.secrets import hide
from ramet.errors import ConfigError, InfraError, RametError
from ramet.event_loop import cancel_and_wait, in_daemon_thread, run_async
from ramet.play.tool_sessions import ToolSession, ToolSessions, open_sessions
from ramet.rollout.tools.runner import CallEnd
from ramet.types import CallStatus, Task, ToolSchema

logger = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
CHUNK = 1 << 16  # bytes read from the standard input at once
END_S = 2.0  # for requests in progress when the command is stopped
Context: TypeAlias = ServerRequestContext[Any, Any]
SessionOf: TypeAlias = Callable[[Context], ToolSession]


class Address(NamedTuple):
    """Host and port of the server. Port 0: any free one."""

    host: str
    port: int

    @classmethod
    def read(cls, text: str) -> Address:
        """Read `HOST:PORT` or `PORT`; the loopback without a host. Raises `ConfigError`."""
        host, _, port = text.rpartition(":")
        inner = host[1:-1] if host.startswith("[") and host.endswith("]") else host
        if (":" in inner) != (inner != host) or not (port.isdecimal() and port.isascii()) or int(port) > 65535:
            raise ConfigError(f"--http={text}: expected HOST:PORT, as in {LOOPBACK}:8080 (port 0: any free one)")
        return cls(inner or LOOPBACK, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Streams(NamedTuple):
    """File descriptors of the client's messages and of the answers."""

    messages: int
    answers: int


@contextmanager
def standard_streams() -> Iterator[Streams]:
    """Take standard input and output for the protocol.

    In the block, what plugins, libraries and their programs print goes to the standard error, and they read nothing.
    Raises `ConfigError` if one of the two is closed.
    """
    if sys.stdin is None or sys.stdout is None:
        raise ConfigError("tool serve: the standard input or output is closed; a client of the protocol needs both")
    sys.stdout.flush()
    streams = Streams(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    try:
        yield streams
    finally:
        sys.stdout.flush()
        os.dup2(streams.messages, 0)
        os.dup2(streams.answers, 1)
        os.close(streams.answers)  # a thread may still wait for a message, so that descriptor stays


def serve(resolved: Resolved, names: list[str], task: Task, streams: Streams) -> None:
    """Serve one client over these streams, until it closes them or a signal comes.

    `names`: of tools and sets; empty: all that are configured. Raises `ConfigError` for others, and what opening the
    tools raises.
    """

    async def work() -> None:
        async with open_sessions(resolved.config, task, names) as sessions:
            session = sessions.open()
            logger.info("serving over standard input and output: %s", ", ".join(sessions.schemas))
            serving = asyncio.create_task(_over(streams, make_server(sessions, lambda _: session)))
            stopping = asyncio.create_task(_stop_signal().wait())
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                serving.result()  # raises
            await cancel_and_wait({serving, stopping}, timeout_s=END_S)

    run_async(work())


def serve_http(resolved: Resolved, names: list[str], task: Task, address: Address, say: Callable[[str], None]) -> None:
    """Serve clients that have the key, until a signal comes. `say` prints address and key.

    Raises `ConfigError` for an address that cannot be used, otherwise as `serve`.
    """

    async def work() -> None:
        async with open_sessions(resolved.config, task, names) as sessions:
            server = make_server(sessions, http_session(sessions), over_http=True)
            key = f"ramet-{secrets.token_urlsafe(24)}"
            app = WithKey(server.streamable_http_app(host=address.host), key)
            config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_graceful_shutdown=int(END_S))
            say(f"address: http://{address._replace(port=listening.getsockname()[1])}/mcp")
            say(f"key: {key}")
            say(f"Ctrl-C ends it. Tools: {', '.join(sessions.schemas)}")
            _stop_signal()  # uvicorn raises again the signal that ended it
            await uvicorn.Server(config).serve(sockets=[listening])

    with _bound(address) as listening:
        run_async(work())


def _stop_signal() -> asyncio.Event:
    """An event that SIGINT and SIGTERM set from now on, instead of ending the process."""
    event = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, event.set)
    return event


async def _over(streams: Streams, server: Server[Any]) -> None:
    """Serve the client until it closes its messages, or reads no more answers."""
    lines = _lines(streams.messages)
    answers = anyio.wrap_file(TextIOWrapper(os.fdopen(streams.answers, "wb", closefd=False), encoding="utf-8"))
    try:
        async with stdio_server(lines, answers) as (messages, replies):  # type: ignore[arg-type]
            await server.run(messages, replies, server.create_initialization_options())
    except* BrokenPipeError:
        logger.info("the client reads no more answers")


async def _lines(source: int) -> AsyncIterator[str]:
    """Yield the lines of a descriptor until its end. A read that waits does not keep the process from ending."""
    rest = b""
    while chunk := await in_daemon_thread(lambda: os.read(source, CHUNK)):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield _readable(line.decode("utf-8", "replace"))


def _readable(line: str) -> str:
    """The same message without halves of characters, which programs in JavaScript send and the library does not read:
    their request would have no answer.
    """
    if "\\ud" not in line.lower():
        return line
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return line
    return text.encode("utf-8", "replace").decode()


def _bound(address: Address) -> socket.socket:
    """Raises `ConfigError`."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        raise ConfigError(f"--http={address}: cannot listen there: {reason}") from error


class WithKey:
    """An ASGI application that answers only requests with the key, as a bearer token."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
                refusal = PlainTextResponse("give the key of the server as the header Authorization: Bearer KEY", 401)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def http_session(sessions: ToolSessions) -> SessionOf:
    """Return a function that finds the session of a request: one for each connection of the protocol, which ends it."""

    def session_of(context: Context) -> ToolSession:
        connection = context.session._connection  # no public name leads to its state and its end
        session: ToolSession | None = connection.state.get("ramet")
        if session is None:
            session = connection.state["ramet"] = sessions.open()
            connection.exit_stack.push_async_callback(sessions.end, session)
        return session

    return session_of


def make_server(sessions: ToolSessions, session_of: SessionOf, *, over_http: bool = False) -> Server[Any]:
    """The tools of `sessions` as a server of the protocol; `session_of` finds the session of a request."""
    tools = [_described(schema) for schema in sessions.schemas.values()]
    needs_sessions = over_http and bool(sessions.stateful)

    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        if needs_sessions and context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(
                types.UNSUPPORTED_PROTOCOL_VERSION,
                f"tools with states need sessions, and {context.protocol_version} has none over HTTP",
                {"supported": [*HANDSHAKE_PROTOCOL_VERSIONS], "requested": context.protocol_version},
            )
        if params.name not in sessions.schemas:
            known = ", ".join(sessions.schemas)
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name[:80]}. Tools: {known}.")
        try:
            return _result(await session_of(context).call(params.name, params.arguments or {}))
        except RametError as error:
            logger.warning("tool serve: %s", error)
            is_outage = isinstance(error, InfraError) and not getattr(error, "defect", False)
            what = "infrastructure failure" if is_outage else "the tool's own code failed"
            raise MCPError(types.INTERNAL_ERROR, f"{what}: {hide(str(error))}") from error

    server = Server("ramet", version=ramet.__version__, on_list_tools=list_tools, on_call_tool=call_tool)
    if needs_sessions:
        server.add_request_handler("server/discover", types.RequestParams, _without_sessionless(server))
    return server


def _without_sessionless(server: Server[Any]) -> Callable[[Context, types.RequestParams], Any]:
    """The handler of `server/discover` that names only the protocols with sessions: clients then choose one of them."""

    async def discover(context: Context, params: types.RequestParams) -> types.DiscoverResult:
        capabilities = server.get_capabilities(protocol_version=context.protocol_version)
        return types.DiscoverResult(supported_versions=[*HANDSHAKE_PROTOCOL_VERSIONS], capabilities=capabilities)

    return discover


def _described(schema: ToolSchema) -> types.Tool:
    return types.Tool(
        name=schema.name,
        description=schema.description,
        input_schema={"type": "object", **schema.parameters},
        annotations=types.ToolAnnotations(idempotent_hint=schema.idempotent),
    )


def _result(end: CallEnd) -> types.CallToolResult:
    """The text for the model. Raises the error of a call that no text for the model describes."""
    record, error = end
    if error is not None and record.status is CallStatus.INFRA:
        raise error
    content: list[Any] = [types.TextContent(type="text", text=record.text)]
    return types.CallToolResult(content=content, is_error=record.status is CallStatus.ERROR)
