"""A search service that fails in every documented way (and some others), over real connections.

Its answers are those that Bright Data documents for its SERP API: parsed results as the body or in an envelope, codes
in headers of two families, 429 and 502 with a text, and what proxies and networks add. It knows nothing of the client.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs, urlsplit

from aiohttp import web

Behaviour = Callable[["FaultServer", web.Request, str], Awaitable[web.StreamResponse]]
JSON = "application/json"


def hits(query: str) -> list[dict[str, object]]:
    """What Bing has for the query: nobody else's results look like these."""
    return [
        {"link": f"https://example.org/{n}", "title": f"{query} {n}", "description": f"about {query}, {n}", "rank": n}
        for n in (1, 2)
    ]


def parsed(query: str) -> dict[str, object]:
    return {"general": {"results_cnt": 2, "query": query}, "organic": hits(query), "related": []}


def reply(status: int, body: str | bytes, *, kind: str = JSON, **headers: str) -> Behaviour:
    async def answer(server: FaultServer, request: web.Request, query: str) -> web.StreamResponse:
        raw = body.encode() if isinstance(body, str) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=raw, content_type=kind, headers=named)

    return answer


async def good(server: FaultServer, request: web.Request, query: str) -> web.StreamResponse:
    """In the form that was asked for."""
    body = json.loads(await request.text())
    if body.get("data_format") == "parsed_bing":
        return web.json_response({"status_code": 200, "headers": {}, "body": json.dumps(parsed(query))})
    return web.json_response(parsed(query))


async def truncated(server: FaultServer, request: web.Request, query: str) -> web.StreamResponse:
    """Says that it is longer than it is."""
    raw = json.dumps(parsed(query)).encode()
    response = web.StreamResponse(headers={"Content-Length": str(len(raw) + 1000), "Content-Type": JSON})
    await response.prepare(request)
    await response.write(raw[:50])
    return await broken_off(request, response)


async def broken_off(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return response


async def reset(server: FaultServer, request: web.Request, query: str) -> web.StreamResponse:
    return await broken_off(request, web.Response())


async def drip(server: FaultServer, request: web.Request, query: str) -> web.StreamResponse:
    """A byte now and then, for ever."""
    response = web.StreamResponse(headers={"Content-Type": JSON})
    await response.prepare(request)
    while not server.closing.is_set():
        await response.write(b" ")
        await asyncio.sleep(0.05)
    return response


async def huge(server: FaultServer, request: web.Request, query: str) -> web.StreamResponse:
    """30 MB without saying so."""
    response = web.StreamResponse(headers={"Content-Type": JSON})
    await response.prepare(request)
    for _ in range(30):
        await response.write(b'"' + b"x" * ((1 << 20) - 1))
    return response


async def slow(server: FaultServer, request: web.Request, query: str) -> web.StreamResponse:
    """30 seconds, or until the server ends."""
    try:
        await asyncio.wait_for(server.closing.wait(), 30)
    except TimeoutError:
        pass
    return await good(server, request, query)


def wrapped(status: object, body: object, **headers: str) -> Behaviour:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return reply(200, json.dumps({"status_code": status, "headers": named, "body": body}))


HTML = "<!DOCTYPE html><html><body><ol id='b_results'></ol></body></html>"
BEHAVIOURS: dict[str, Behaviour] = {
    "good": good,
    "500": reply(500, "internal error", kind="text/plain"),
    "502": reply(502, "", x_brd_error_code="unexpected_q", x_brd_error="Unexpected query"),
    "503 after 0": reply(503, "busy", Retry_After="0"),
    "429": reply(429, "slow down", kind="text/plain"),
    "429 after 1": reply(429, "slow down", kind="text/plain", Retry_After="1"),
    "429 rate": reply(429, "", x_brd_error_code="sr_rate_limit", x_brd_error="Rate limit of 20 per s"),
    "429 repeated": reply(429, "", x_brd_err_code="repeat_query_rejected", x_brd_err_msg="asked too often"),
    "html": reply(200, HTML, kind="text/html"),
    "html as json": reply(200, HTML),
    "garbage": reply(200, bytes(range(256)) * 4),
    "no utf-8": reply(200, b'{"organic": "\xff"}'),
    "truncated": truncated,
    "cut json": reply(200, '{"general": {}, "organic": [{"link"'),
    "empty": reply(200, ""),
    "null": reply(200, "null"),
    "[]": reply(200, "[]"),
    "no organic": reply(200, '{"general": {"query": "x"}}'),
    "organic is a text": reply(200, '{"organic": "none"}'),
    "organic of texts": reply(200, '{"organic": ["a", "b"]}'),
    "nested": reply(200, "[" * 100_000),
    "wrapped 502": wrapped(502, "bad gateway", x_brd_error_code="unexpected_q"),
    "wrapped 429": wrapped(429, "", x_brd_error_code="bucket_rate_limit"),
    "wrapped nothing": wrapped(200, ""),
    "wrapped null": wrapped(None, None),
    "30 MB": huge,
    "drip": drip,
    "reset": reset,
    "30 s": slow,
    "redirect": reply(302, "", Location="http://127.0.0.1:1/"),
    "400": reply(400, '{"error": "bad request"}'),
    "401": reply(401, "invalid key"),
    "402": reply(402, "no credit"),
    "403": reply(403, "zone is disabled", x_brd_err_code="client_10110", x_brd_err_msg="no access"),
    "404": reply(404, "not found"),
    "407": reply(407, "wrong zone", x_brd_err_code="client_10000"),
    "nothing found": reply(200, '{"general": {"results_cnt": 0}, "organic": []}'),
}


class FaultServer:
    """`plan(query, n)` names the behaviour of the n-th request (from 1) for the query; default: all are good."""

    def __init__(self, plan: Callable[[str, int], str] = lambda query, n: "good") -> None:
        self.plan = plan
        self.requests: Counter[str] = Counter()  # by query
        self.bodies: list[dict[str, str]] = []
        self.authorizations: set[str] = set()
        self.running = self.most_running = 0
        self.closing = asyncio.Event()
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> FaultServer:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/request", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/request"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closing.set()
        assert self._runner is not None
        await self._runner.cleanup()

    @property
    def total(self) -> int:
        return self.requests.total()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.text())
        self.bodies.append(body)
        self.authorizations.add(request.headers.get("Authorization", ""))
        [query] = parse_qs(urlsplit(body["url"]).query)["q"]
        self.requests[query] += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await BEHAVIOURS[self.plan(query, self.requests[query])](self, request, query)
        except ConnectionError:  # the client has heard enough
            return web.Response()
        finally:
            self.running -= 1
