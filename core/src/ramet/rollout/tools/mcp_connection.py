"""One connection to an MCP server, and what may happen to it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from ramet.config.secrets import hide
from ramet.event_loop import is_cancelled
from ramet.processes import own_reaper
from ramet.rollout.config import McpConfig
from ramet.rollout.tools.mcp_lines import ENCODING, MAX_LINE, UNREADABLE, bound, unread, without_output_schemas

CLOSE_TIMEOUT_S = 8.0  # the client gives a server 2 s after each of: end of input, SIGTERM, SIGKILL
LAST_WORDS = 400  # bytes of what a server that failed wrote to its standard error
CHUNK, CHUNKS = 1 << 16, 64  # bytes read from there at once, and how often after its end
PROBE_TIMEOUT_S = 5.0  # for a server that gave no answer to a call and is asked for its tools
SESSION_GONE = "Session terminated"  # how the client library says that a server over HTTP knows no such session
BROKEN_STREAM = "SSE stream failed"  # and that its text cannot be read, or is too long
MAX_PAGES, MAX_TOOLS = 100, 1000  # that a server may list
READ_TIMEOUT_S = 300.0  # of one HTTP request; the time-out of the tool is what usually ends a call


class McpFailure(Exception):
    """The server or the way to it."""


class McpRefusal(Exception):
    """The server does not take these arguments: the caller's mistake."""


class McpConnection:
    """Connection that a separate task keeps open: the client library must close in the task in which it opened."""

    def __init__(self, config: McpConfig) -> None:
        self._config = config
        self._client: Any = None
        self._unread = ""  # its standard output that is not a message, in words
        self._is_doubtful = False  # no request has been answered since one was given up
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._hold())

    @classmethod
    async def open(cls, config: McpConfig) -> McpConnection:
        """Raises `McpFailure` without an answer within `connect_timeout_s`, `ImportError` without the library."""
        connection = cls(config)
        try:
            async with asyncio.timeout(config.connect_timeout_s):
                await asyncio.shield(connection._ready)
        except TimeoutError as error:
            await connection.close()
            raise McpFailure(
                f"no answer within {config.connect_timeout_s:g} s (tools.NAME.params.connect_timeout_s)"
                f"{connection._unread}"
            ) from error
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        return not (self._ended.is_set() or self._stop.is_set() or self._task.done())

    async def tools(self) -> Sequence[Any]:
        """All that the server lists. Raises `McpFailure`."""
        tools: list[Any] = []
        cursor = None
        for _ in range(MAX_PAGES):
            page = await self._asked(self._client.list_tools(cursor=cursor))
            tools += page.tools
            cursor = page.next_cursor
            if len(tools) > MAX_TOOLS:
                break
            if cursor is None:
                return tools
        raise McpFailure(f"it lists more than {MAX_TOOLS} tools, or more than {MAX_PAGES} pages of them")

    async def answers(self) -> bool:
        """Whether it does; asked only if a call was given up since its last answer."""
        if not self._is_doubtful:
            return True
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                await self._asked(self._client.list_tools())
        except (TimeoutError, McpFailure, McpRefusal):
            return False
        return True

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raises `McpRefusal` and `McpFailure`."""
        return await self._asked(self._client.call_tool(name, arguments))

    async def _asked(self, request: Any) -> Any:
        mcp, types = (importlib.import_module(name) for name in ("mcp", "mcp_types"))
        try:
            answer = await request
            self._is_doubtful = False
            return answer
        except mcp.MCPError as error:
            if error.code in (types.INVALID_PARAMS, UNREADABLE):
                raise McpRefusal(hide(error.message)) from error
            if error.code == types.PARSE_ERROR or error.message.startswith(BROKEN_STREAM):
                raise McpRefusal(
                    f"the server's answer cannot be read, or has more than {MAX_LINE >> 20} MiB"
                ) from error
            if error.code == types.CONNECTION_CLOSED or error.message == SESSION_GONE:
                self._ended.set()
            raise McpFailure(hide(error.message)) from error
        except asyncio.CancelledError as error:
            if is_cancelled():
                self._is_doubtful = True
                raise
            self._ended.set()
            raise McpFailure("the connection ended during the call") from error
        except RuntimeError as error:  # an answer of a kind that a call of a tool does not have
            raise McpFailure(hide(str(error))) from error
        except Exception as error:
            self._ended.set()
            raise McpFailure(hide(f"{type(error).__name__}: {error}")) from error

    async def close(self) -> None:
        """Returns when the server has ended, or does not within `CLOSE_TIMEOUT_S`. Never raises."""
        self._stop.set()
        done, _ = await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT_S)
        if not done:
            self._task.cancel()
        if self._ready.done() and not self._ready.cancelled():
            self._ready.exception()  # looked at, so that asyncio does not report it

    async def _hold(self) -> None:
        with _LastWords() as said:
            try:
                async with AsyncExitStack() as stack:
                    transport = await self._transport(stack, said)
                    mcp = importlib.import_module("mcp")
                    try:
                        self._client = await stack.enter_async_context(mcp.Client(transport, cache=None))
                    finally:
                        said.file.close()  # the server has its own
                    self._ready.set_result(None)
                    await self._stop.wait()
            except ImportError as error:
                self._fail(error)
            except Exception as error:
                self._fail(McpFailure(hide(_reason(error) + said.text)))
            finally:
                self._ended.set()

    def _fail(self, error: Exception) -> None:
        if not self._ready.done():
            self._ready.set_exception(error)

    async def _transport(self, stack: AsyncExitStack, said: _LastWords) -> AbstractAsyncContextManager[Any]:
        """A server over stdio gets no variables of this process but `env`, and the few that programs need."""
        config = self._config
        if config.url is None:
            mcp, stdio = (importlib.import_module(name) for name in ("mcp", "mcp.client.stdio"))
            program, *arguments = config.command
            env = config.env | own_reaper().tag()
            server = mcp.StdioServerParameters(
                command=program,
                args=arguments,
                env=env,
                cwd=config.cwd,
                encoding=ENCODING,
                encoding_error_handler="replace",
            )
            return self._watched(stdio.stdio_client(server, errlog=said.file))
        httpx, http = (importlib.import_module(name) for name in ("httpx2", "mcp.client.streamable_http"))
        timeout = httpx.Timeout(config.connect_timeout_s, read=READ_TIMEOUT_S)
        headers = {"Accept-Encoding": "identity", **config.headers}
        client = httpx.AsyncClient(headers=headers, timeout=timeout, event_hooks={"response": [bound]})
        await stack.enter_async_context(client)
        return self._watched(http.streamable_http_client(config.url, http_client=client, max_sse_event_size=MAX_LINE))

    @asynccontextmanager
    async def _watched(self, transport: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
        """The same streams; their end is noticed when it comes, not by the next call."""
        anyio = importlib.import_module("anyio")
        send, receive = anyio.create_memory_object_stream(0)

        async def pump(read: Any) -> None:
            async with send:
                with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    async for message in read:
                        if isinstance(message, Exception):
                            message, self._unread = unread(message)
                        if not isinstance(message, Exception):
                            without_output_schemas(message)
                        await send.send(message)
            self._ended.set()

        async with transport as (read, write), anyio.create_task_group() as group:
            group.start_soon(pump, read)
            try:
                yield receive, write
            finally:
                group.cancel_scope.cancel()


def _reason(error: BaseException) -> str:
    """The innermost error of groups of errors, which the client library raises."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


class _LastWords:
    """The end of what a server writes to its standard error: read as it comes, so that it never fills a disk."""

    def __init__(self) -> None:
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self.file = os.fdopen(writing, "w")
        self._said = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reading, self._read)

    def __enter__(self) -> _LastWords:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.remove_reader(self._reading)
        os.close(self._reading)
        self.file.close()

    def _read(self) -> bool:
        """Whether there was something."""
        try:
            data = os.read(self._reading, CHUNK)
        except BlockingIOError:
            return False
        if not data:  # its end, which the loop would report again and again
            self._loop.remove_reader(self._reading)
        self._said = (self._said + data)[-LAST_WORDS:]
        return bool(data)

    @property
    def text(self) -> str:
        for _ in range(CHUNKS):
            if not self._read():
                break
        words = " ".join(self._said.decode(errors="replace").split())
        return f"; it said: {words}" if words else ""
