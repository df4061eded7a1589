"""MCP servers over HTTP that lie: answers without end, compressed ones, patterns that take forever."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ramet.errors import ToolError
from ramet.rollout.config import McpConfig
from ramet.rollout.tools import mcp_connection, mcp_lines
from ramet.rollout.tools.mcp import McpServer
from ramet.tracking.log import quiet_libraries
from ramet.types import ToolCall

pytest.importorskip("mcp", reason="needs ramet[mcp]")
SLOW = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
TOOL = {"name": "t", "description": "d", "inputSchema": {"type": "object"}, "outputSchema": SLOW}
RESULT = {"content": [{"type": "text", "text": "x"}], "structuredContent": {"a": "a" * 40 + "!"}}


class Liar(BaseHTTPRequestHandler):
    """Answers a call as its argument `how` says."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        given = asked.get("params", {})
        if "id" not in asked:
            return self.reply(202, b"")
        answers: dict[str, Any] = {"tools/list": {"tools": [TOOL]}, "tools/call": RESULT}
        answers["initialize"] = {"capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}
        if asked["method"] not in answers:
            return self.reply(404, b"")
        result = answers[asked["method"]] | {"protocolVersion": given.get("protocolVersion")}
        body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()
        how = given.get("arguments", {}).get("how")
        if how == "packed":
            return self.reply(200, gzip.compress(body), {"Content-Encoding": "gzip"})
        if how in ("events", "endless events"):
            body = b"event: message\ndata: " + body + b"\n\n"
        kind = {"Content-Type": "text/event-stream"} if how in ("events", "endless events") else {}
        self.reply(200, body.removesuffix(b"\n\n") if how == "endless events" else body, kind, "endless" in str(how))

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None, endless: bool = False) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": "application/json"} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        try:
            self.wfile.write(body)
            while endless:
                self.wfile.write(b"x" * 1000)
        except OSError:  # the client had enough
            pass

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/mcp"
        server.shutdown()


@pytest.mark.parametrize("how", ["endless", "endless events", "packed"])
def test_an_answer_without_end_or_compressed_ends_its_call_and_no_other(
    how: str, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (mcp_connection, mcp_lines):
        monkeypatch.setattr(module, "MAX_LINE", 2 << 20)
    quiet_libraries()

    async def main() -> None:
        server = McpServer(McpConfig(url=address))
        (tool,) = await server.open()
        first = await server.connection()
        with pytest.raises(ToolError, match=r"^the server's answer cannot be read, or has more than 2 MiB$"):
            await asyncio.wait_for(tool(ToolCall(name="t", arguments={"how": how})), 30)
        assert (await tool(ToolCall(name="t", arguments={"how": "events"}))).text == "x"
        assert await server.connection() is first
        await server.aclose()

    asyncio.run(main())
    assert caplog.records == []


def test_what_a_server_promises_of_its_results_is_not_checked_in_the_event_loop(address: str) -> None:
    """Its pattern would take years on its result, and nothing else could run meanwhile."""

    async def main() -> None:
        server = McpServer(McpConfig(url=address))
        (tool,) = await server.open()
        assert (await tool(ToolCall(name="t", arguments={}))).text == "x"
        await server.aclose()

    asyncio.run(main())
