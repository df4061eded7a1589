"""Output of an MCP server, made safe to read: bounded lines, lines that are not messages, its own schemas."""

from __future__ import annotations

import codecs
import importlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from ramet.config.secrets import hide

ENCODING = "ramet_mcp_lines"  # of a server's standard output: `_Lines`
MAX_LINE = 16 << 20  # characters of a message; over HTTP, bytes
UNREADABLE = -32099  # code of the error that stands for an answer which cannot be read; in the range for servers
# The call that a line answers: the id at its beginning. Another one may be part of what the tool gave.
_ID = re.compile(r'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})(?!\d)')


def unread(error: Exception) -> tuple[Any, str]:
    """The message to read instead of a line that is not one, and what the line was, in words.

    It is the error that ends the line's call at once, or `error` itself where the line does not name a call.
    """
    message, types = (importlib.import_module(name) for name in ("mcp.shared.message", "mcp_types"))
    details = error.errors() if hasattr(error, "errors") else [{}]
    received = details[0].get("input", "")  # the line, or what JSON it is
    line = received if isinstance(received, str) else json.dumps(received, default=str)
    reason = str(details[0].get("msg", error)).partition(" at line")[0]
    words = hide(f"; it wrote to its standard output what is not a message: {line[:80]!r}")
    asked = received.get("id") if isinstance(received, dict) else None
    if not isinstance(asked, int) and (match := _ID.match(line)) is not None:
        asked = int(match[1])
    if not isinstance(asked, int):
        return error, words
    data = types.ErrorData(code=UNREADABLE, message=f"the server's answer cannot be read: {reason}")
    return message.SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=asked, error=data)), words


def without_output_schemas(message: Any) -> None:
    """Remove the output schemas from a list of tools. The client library checks each result against them in the event
    loop, and a pattern such as `(a+)+$` blocks that without end. Models read only the text."""
    listed = getattr(message.message, "result", {}).get("tools")
    for tool in listed if isinstance(listed, list) else ():
        if isinstance(tool, dict):
            tool.pop("outputSchema", None)


async def bound(response: Any) -> None:
    """Hook of the HTTP client: an answer of more than `MAX_LINE` bytes ends with an error, which the client library
    gives to its call. Streams of events are bounded by event. Nothing was asked for compressed, so nothing is
    unpacked: little could become much."""
    httpx = importlib.import_module("httpx2")

    class Bounded(httpx.AsyncByteStream):  # type: ignore[misc, name-defined]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            n_left = MAX_LINE
            async for part in stream:
                n_left -= len(part)
                if n_left < 0:
                    raise httpx.StreamError(f"it has more than {MAX_LINE >> 20} MiB")
                yield part

        async def aclose(self) -> None:
            await stream.aclose()

    response.headers.pop("content-encoding", None)
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        stream, response.stream = response.stream, Bounded()


class _Lines(codecs.IncrementalDecoder):
    """UTF-8 with replacements. Lines are cut at `MAX_LINE` characters, so that none fills the memory; a cut line is not
    a message.
    """

    def __init__(self, errors: str = "replace") -> None:
        super().__init__(errors)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0  # of the line that has begun

    def decode(self, data: Any, final: bool = False) -> str:
        first, *others = self._decoder.decode(data, final).split("\n")
        lines = [first[: max(0, MAX_LINE - self._length)], *(line[:MAX_LINE] for line in others)]
        self._length = min(MAX_LINE, len(others[-1]) if others else self._length + len(first))
        return "\n".join(lines)


def _find_encoding(name: str) -> codecs.CodecInfo | None:
    utf_8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(utf_8.encode, utf_8.decode, incrementaldecoder=_Lines) if name == ENCODING else None


codecs.register(_find_encoding)
