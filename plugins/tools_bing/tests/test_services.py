"""Providers with a plain JSON interface: what they are sent, and how what they send is read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from ramet import ConfigError, InfraError
from ramet.helpers import HttpFailure
from ramet_tools_bing import SearchConfig, SearchTool
from ramet_tools_bing.providers.base import HttpRequest, ServiceClient, environment_proxy
from ramet_tools_bing.providers.services import Brave
from ramet_tools_bing.results import SearchItem

FIRST, SECOND = SearchItem(title="A", url="http://a/", text="of a"), SearchItem(title="B", text="of b")
ANSWERS: dict[str, Any] = {
    "serper": {"organic": [{"title": "A", "link": "http://a/", "snippet": "of a"}, {"title": "B", "snippet": "of b"}]},
    "tavily": {"results": [{"title": "A", "url": "http://a/", "content": "of a"}, {"title": "B", "content": "of b"}]},
    "brave": {
        "type": "search",
        "web": {
            "results": [
                {"title": "A", "url": "http://a/", "description": "of a"},
                {"title": "B", "description": "of b"},
            ]
        },
    },
    "retrieval": {
        "result": [
            [
                {"document": {"contents": '"A"\nof a', "url": "http://a/"}, "score": 1.5},
                {"document": {"contents": '"B"\nof b'}, "score": 0.5},
            ]
        ]
    },
}
SENT = {
    "serper": ("POST", "X-API-KEY", "k-1", {"q": "who is it", "gl": "de", "num": 3}),
    "tavily": ("POST", "Authorization", "Bearer k-1", {"query": "who is it", "max_results": 3}),
    "brave": (
        "GET", "X-Subscription-Token", "k-1",
        {"q": "who is it", "count": "3", "country": "DE", "text_decorations": "0"},
    ),
    "retrieval": ("POST", "Authorization", None, {"queries": ["who is it"], "topk": 3, "return_scores": True}),
}  # fmt: skip


def asked(name: str, answer: Any, monkeypatch: pytest.MonkeyPatch, status: int = 200) -> tuple[Any, list[Any]]:
    """What a search returned or raised, and what the server was sent."""
    sent = list[Any]()
    monkeypatch.setattr("ramet_tools_bing.service.BACKOFF_S", 0.001)
    if name != "retrieval":
        monkeypatch.setenv(f"{name.upper()}_API_KEY", "k-1")

    async def handle(request: web.Request) -> web.Response:
        body = json.loads(await request.text()) if request.method == "POST" else dict(request.query)
        sent.append((request.method, request.headers, body))
        return web.Response(status=status, text=json.dumps(answer), content_type="application/json")

    async def main() -> Any:
        app = web.Application()
        app.router.add_route("*", "/find", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/find"
        tool = SearchTool(SearchConfig(provider=name, url=url, country="de", cache="off"))
        try:
            return await tool.search("who  is it", 3)
        except (InfraError, ConfigError) as error:
            return error
        finally:
            await tool.aclose()
            await runner.cleanup()

    return asyncio.run(main()), sent


@pytest.mark.parametrize("name", ANSWERS)
def test_a_service_is_asked_as_it_documents_and_its_answer_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, [(method, headers, body)] = asked(name, ANSWERS[name], monkeypatch)
    assert found.items == (FIRST, SECOND) and found.provider == name
    expected_method, header, value, expected = SENT[name]
    assert (method, headers.get(header), body) == (expected_method, value, expected)


NOTHING: dict[str, Any] = {
    "serper": {"organic": []},
    "tavily": {"results": []},
    "brave": {"type": "search", "query": {}},
    "retrieval": {"result": [[]]},
}


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_found_is_an_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(name, NOTHING[name], monkeypatch)[0].items == ()


@pytest.mark.parametrize(
    "answer", [None, [], {}, "text", {"error": "x"}, {"result": []}, {"result": [[{"document": 3}]]}]
)
@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_no_answer_is_never_nothing_found(name: str, answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found, sent = asked(name, answer, monkeypatch)
    assert isinstance(found, InfraError) and str(found).startswith(f"{name}: ") and len(sent) == 3


@pytest.mark.parametrize("name", ["serper", "brave"])
def test_a_wrong_key_stops_the_run_without_showing_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, sent = asked(name, {"message": "the key k-1 is unknown"}, monkeypatch, status=401)
    assert isinstance(found, ConfigError) and len(sent) == 1
    assert str(found).startswith(f"{name}: 401 Unauthorized: the key *** is unknown; ") and "k-1" not in str(found)


def test_brave_shows_no_key() -> None:
    assert "k-1" not in repr(Brave(key="k-1", country="de").request("q", 3))


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://api.example/x", "http://proxy:3128"),
        ("http://api.example/x", None),
        ("https://inside.example/x", None),
    ],
)
def test_a_proxy_of_the_environment_is_used(url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert environment_proxy(url) == proxy


def test_a_proxy_that_refuses_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def ask() -> str:
        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            monkeypatch.setenv("HTTPS_PROXY", f"http://user:PROXY-SECRET@{place}")
            client = ServiceClient("serper", "https://google.serper.dev/", "KEY")
            with pytest.raises(HttpFailure) as caught:
                await client.ask(HttpRequest(method="GET", url="https://google.serper.dev/"), 5)
            await client.http.aclose()
            return str(caught.value).replace(place, "PLACE")

    assert asyncio.run(ask()) == "serper: 407, message='No', url='http://PLACE'"
