"""The client against a server in this process: what it sends, repeats, refuses, counts and keeps."""

from __future__ import annotations

import asyncio
import json
import math
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from ramet import (
    ChatReply,
    ConfigError,
    InfraError,
    OpenAIClient,
    OpenAIOptions,
    RequestRefused,
    user_prompt,
)
from ramet.helpers.openai import cache as cache_module
from ramet.helpers.openai import client as client_module
from ramet.testing import OpenAIServer, RawReply, local_services

pytest.importorskip("aiohttp", reason="needs ramet[openai]")

ASK = user_prompt("How many?")
FINE = json.dumps({"choices": [{"message": {"content": "late"}}]})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.01)


def run(work: Callable[[OpenAIClient], Awaitable[Any]], *urls: str, cache: Path | None = None, **options: Any) -> Any:
    async def main() -> Any:
        client = OpenAIClient(OpenAIOptions(urls=list(urls), **options), "rewards.judge.params.server")
        with local_services() as services:
            await client.start(services, cache=cache)
            try:
                return await work(client)
            finally:
                await client.aclose()

    return asyncio.run(main())


def chat(server: OpenAIServer, **options: Any) -> tuple[ChatReply, OpenAIClient]:
    async def work(client: OpenAIClient) -> tuple[ChatReply, OpenAIClient]:
        return await client.chat(ASK, temperature=0, max_tokens=5), client

    found: tuple[ChatReply, OpenAIClient] = run(work, server.url, **options)
    return found


class Script:
    """The replies of a server, in order; the last one again and again."""

    def __init__(self, *replies: str | RawReply) -> None:
        self.replies = list(replies)

    def __call__(self, body: dict[str, Any]) -> str | RawReply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def test_what_is_sent_and_what_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret-1")
    with OpenAIServer(Script("three of them")) as server:
        reply, client = chat(server, key_variable="MY_KEY", input_price=2.0, output_price=10.0)
    assert server.requests == [
        {"model": "tiny", "messages": [{"role": "user", "content": "How many?"}], "temperature": 0, "max_tokens": 5}
    ]
    assert server.keys == ["secret-1"]
    assert reply == ChatReply(text="three of them", finish="stop", model="tiny", input_tokens=2, output_tokens=3)
    counted = client.usage.metrics()
    assert counted.pop("wait_s") > 0
    assert counted == {
        "requests": 1, "attempts": 1, "cached": 0, "failures": 0, "input_tokens": 2, "output_tokens": 3,
        "dollars": pytest.approx(34e-6),
    }  # fmt: skip


@pytest.mark.parametrize(
    "trouble",
    [
        RawReply(status=500, body="no"),
        RawReply(status=429, headers={"Retry-After": "0.01"}),
        RawReply(status=503, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        RawReply(body="<html>busy</html>"),
        RawReply(body="[" * 100_000),
        RawReply(body="[1]"),
        RawReply(body='{"choices": []}'),
        RawReply(body='{"choices": [{"message": {"content": 3}}]}'),
        RawReply(status=429, headers={"Retry-After": "nan"}),
        RawReply(status=429, headers={"Retry-After": "inf"}),
        RawReply(body='{"choi', promised=500),
        RawReply(body=b"\xff\xfe"),
    ],
    ids=lambda trouble: f"{trouble.status} {trouble.body[:20]!r} {trouble.headers.get('Retry-After', '')}",
)
def test_what_may_pass_is_asked_again(trouble: RawReply) -> None:
    with OpenAIServer(Script(trouble, trouble, "fine")) as server:
        reply, client = chat(server)
    assert reply.text == "fine" and len(server.requests) == 3
    assert (client.usage.requests, client.usage.attempts, client.usage.failures) == (1, 3, 0)


@pytest.mark.parametrize(
    ("reply", "kind", "said", "asked"),
    [
        (RawReply(status=500, body='{"error": {"message": "out of memory"}}'), InfraError,
         "500 Internal Server Error: out of memory (3 attempts)", 3),
        (RawReply(status=400, body='{"error": {"message": "too long"}}'), RequestRefused,
         "400 Bad Request: too long", 1),
        (RawReply(status=401, body='{"error": "wrong key sk-9"}'), InfraError, "401 Unauthorized: wrong key ***", 1),
        (RawReply(status=404, body=""), InfraError, "404 Not Found", 1),
        (RawReply(status=429, headers={"Retry-After": "3600"}), InfraError, "429 Too Many Requests", 1),
    ],
)  # fmt: skip
def test_what_fails_says_where_and_why(
    monkeypatch: pytest.MonkeyPatch, reply: RawReply, kind: type[InfraError], said: str, asked: int
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-9")
    with OpenAIServer(Script(reply)) as server, pytest.raises(InfraError) as caught:
        chat(server, retries=2, model="tiny")
    assert type(caught.value) is kind
    assert str(caught.value) == f"rewards.judge.params.server: {server.url}/chat/completions: {said}"
    assert len(server.requests) == asked
    assert caught.value.retry_after_s == (3600 if "Retry-After" in reply.headers else None)


def test_neither_key_nor_password_is_in_a_message_and_a_key_may_end_in_a_new_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret\n")
    with OpenAIServer(Script(RawReply(body="you sent sk-secret"))) as server:
        with pytest.raises(InfraError) as caught:
            chat(server, retries=0, model="tiny")
        assert str(caught.value).endswith("/chat/completions: the reply is not JSON: b'you sent ***'")
        assert server.keys == ["sk-secret"]
        monkeypatch.delenv("OPENAI_API_KEY")
        url = server.url.replace("http://", "http://me:hunter2@")
        with pytest.raises(InfraError) as caught:
            run(lambda client: client.chat(ASK), url, retries=0, model="tiny")
        assert str(caught.value).startswith(f"rewards.judge.params.server: {server.url}/chat/completions: ")


def test_a_server_that_is_not_there_and_one_that_hangs_are_infrastructure() -> None:
    with OpenAIServer(Script("x")) as server:
        url = server.url
    with pytest.raises(InfraError, match=r"params.server: .*Connect call failed.* \(2 attempts\)"):
        run(lambda client: client.chat(ASK), url, model="tiny", retries=1)

    def slow(body: dict[str, Any]) -> RawReply:
        time.sleep(0.6)
        return RawReply(body=FINE)

    with OpenAIServer(slow) as server:
        with pytest.raises(InfraError, match=r"/chat/completions: no reply within 0.05 s \(2 attempts\)"):
            run(lambda client: client.chat(ASK), server.url, timeout_s=0.05, retries=1, model="tiny")
        began = time.monotonic()
        with pytest.raises(InfraError) as caught:
            run(lambda client: client.chat(ASK, deadline_s=0.2), server.url, timeout_s=0.15, retries=50, model="tiny")
        assert time.monotonic() - began < 3  # 51 attempts would take 7 s
    assert str(caught.value).startswith("rewards.judge.params.server: no reply within 0.2 s; http://127.0.0.1:")


def test_a_failing_server_of_several_is_left_alone_and_an_affinity_keeps_its_server() -> None:
    with OpenAIServer(Script(RawReply(status=500))) as bad, OpenAIServer(Script("fine")) as good:

        async def twenty(client: OpenAIClient) -> list[str]:
            return [(await client.chat(ASK, affinity=f"task {n}")).text for n in range(20)]

        assert run(twenty, bad.url, good.url, model="tiny") == ["fine"] * 20
        assert 1 <= len(bad.requests) <= 3 and len(good.requests) == 20
    with OpenAIServer(Script("a")) as one, OpenAIServer(Script("b")) as other:

        async def by_task(client: OpenAIClient) -> list[str]:
            calls = [client.chat(ASK, affinity=f"task {n % 8}") for n in range(32)]
            return [reply.text for reply in await asyncio.gather(*calls)]

        texts = run(by_task, one.url, other.url)
    assert texts == texts[:8] * 4 and {"a", "b"} == set(texts)


def test_no_more_requests_than_allowed_are_in_flight_and_in_all() -> None:
    running, most = 0, 0

    def count(body: dict[str, Any]) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.02)
        running -= 1
        return "x"

    async def many(client: OpenAIClient) -> list[Any]:
        return await asyncio.gather(*(client.chat(ASK) for _ in range(12)), return_exceptions=True)

    with OpenAIServer(count) as server:
        found = run(many, server.url, concurrency=3, max_requests=10, retries=0)
    assert most == 3 and len(server.requests) == 10
    errors = [one for one in found if isinstance(one, Exception)]
    assert [str(error) for error in errors] == ["rewards.judge.params.server: max_requests=10 is used up"] * 2


def test_all_workers_of_a_run_keep_to_one_rate() -> None:
    async def five(client: OpenAIClient) -> float:
        began = time.monotonic()
        await asyncio.gather(*(client.chat(ASK) for _ in range(5)))
        return time.monotonic() - began

    with OpenAIServer(Script("x")) as server:
        assert run(five, server.url, per_s=20.0) > 0.09  # 5 at 20/s, less the burst of 0.1 s


def test_an_equal_request_is_answered_from_the_file_also_after_a_restart(tmp_path: Path) -> None:
    cache = tmp_path / "replies.sqlite"

    async def ask(client: OpenAIClient) -> list[bool]:
        together = [client.chat(ASK, cached=True, temperature=0) for _ in range(5)]
        replies = [*await asyncio.gather(*together), await client.chat(ASK, cached=True, temperature=1)]
        assert {reply.text for reply in replies} == {"x"}
        assert client.usage.cached + client.usage.requests == 6
        return [reply.cached for reply in replies]

    with OpenAIServer(Script("x")) as server:
        assert run(ask, server.url, cache=cache, model="tiny") == [False, True, True, True, True, False]
        assert run(ask, server.url, cache=cache, model="tiny") == [True] * 6
        assert len(server.requests) == 2
        assert run(lambda client: client.chat(ASK), server.url, cache=cache).cached is False


def test_a_text_that_the_caller_refuses_is_asked_for_once_more_and_not_kept(tmp_path: Path) -> None:
    cache = tmp_path / "replies.sqlite"

    def ask(client: OpenAIClient) -> Awaitable[ChatReply]:
        return client.chat(ASK, cached=True, check=lambda text: text == "yes")

    with OpenAIServer(Script("perhaps", "yes", "no", "no", "yes")) as server:
        assert run(ask, server.url, cache=cache).accepted is True
        assert run(ask, server.url, cache=cache).cached is True
        cache.unlink()
        refused = run(ask, server.url, cache=cache)
        assert (refused.text, refused.accepted) == ("no", False)
        assert run(ask, server.url, cache=cache).text == "yes"
        assert len(server.requests) == 5


@pytest.mark.parametrize("kept", ["{}", "[1]", "3", '{"choices": [{"message": {"content": 3}}]}'])
def test_a_kept_reply_without_a_text_is_asked_for_again(tmp_path: Path, kept: str) -> None:
    """A file that others wrote may hold anything."""
    cache = tmp_path / "replies.sqlite"

    def ask(client: OpenAIClient) -> Awaitable[ChatReply]:
        return client.chat(ASK, cached=True)

    with OpenAIServer(Script("x")) as server:
        run(ask, server.url, cache=cache, model="tiny")
        with sqlite3.connect(cache) as other:
            other.execute("UPDATE replies SET reply = ?", (kept,))
        assert run(ask, server.url, cache=cache, model="tiny").text == "x"


def test_numbers_of_tokens_that_cannot_be_are_not_counted() -> None:
    """They would end the reward, with a fault of the plugin, where its price is a number of dollars."""
    for number in (10**400, -5, "7", None):
        body = {"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1, "completion_tokens": number}}
        with OpenAIServer(Script(RawReply(body=json.dumps(body)))) as server:
            reply, client = chat(server, output_price=1.0)
        assert (reply.text, client.usage.input_tokens, client.usage.output_tokens) == ("x", 1, 0)


def test_a_file_that_is_no_cache_is_named_and_a_full_disk_loses_no_reply(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_text("not a database, but long enough to be looked at" * 20)
    with OpenAIServer(Script("x")) as server:
        with pytest.raises(ConfigError) as caught:
            run(lambda client: client.chat(ASK, cached=True), server.url, cache=broken)
        assert str(caught.value) == f"{broken}: cannot be read as a cache of replies: file is not a database"

        full = tmp_path / "full.sqlite"
        with sqlite3.connect(full) as made:
            made.execute("CREATE TABLE replies (request TEXT PRIMARY KEY, reply TEXT NOT NULL)")
            made.execute("CREATE TRIGGER t BEFORE INSERT ON replies BEGIN SELECT RAISE(FAIL, 'disk is full'); END")

        async def twice(client: OpenAIClient) -> list[str]:
            return [(await client.chat(ASK, cached=True)).text for _ in range(2)]

        assert run(twice, server.url, cache=full) == ["x", "x"]
    assert [record.getMessage() for record in caplog.records] == [f"{full}: replies are no longer kept: disk is full"]


def test_the_check_says_what_the_configuration_got_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(client: OpenAIClient) -> Awaitable[None]:
        return client.check()

    name = "rewards.judge.params.server"
    with OpenAIServer(Script("x"), models=("a", "b")) as server:
        run(check, server.url, model="a")
        for options, said in (
            ({"model": "c"}, f"{name}.model is 'c'; {server.url} offers: a, b"),
            ({}, f"{name}.model is null, and the server offers a, b; allowed: the name of a model that it offers"),
        ):
            with pytest.raises(ConfigError) as caught:
                run(check, server.url, **options)
            assert str(caught.value) == said
        wrong = server.url.replace("/v1", "/v2")
        with pytest.raises(ConfigError, match=f"{name}: there is no such address: {wrong}/models: 404 Not Found"):
            run(check, wrong)
    with pytest.raises(InfraError, match=rf"Cannot connect .*; start a server there, or set {name}\.urls="):
        run(check, server.url)  # it has ended


def test_a_cache_that_cannot_be_opened_is_said_by_the_check_and_one_that_is_locked_later_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_module, "BUSY_S", 0.05)
    with OpenAIServer(Script("x")) as server:
        with pytest.raises(ConfigError, match=rf"^{tmp_path}: cannot be read .*: unable to open database file$"):
            run(lambda client: client.check(), server.url, cache=tmp_path)
        cache = tmp_path / "replies.sqlite"

        async def while_locked(client: OpenAIClient) -> str:
            await client.check()
            with sqlite3.connect(cache) as other:
                other.execute("BEGIN EXCLUSIVE")
                return (await client.chat(ASK, cached=True)).text

        assert run(while_locked, server.url, cache=cache) == "x"
    assert [record.getMessage() for record in caplog.records] == [f"{cache}: cannot be read now: database is locked"]


def test_options_that_cannot_be_are_all_named() -> None:
    with pytest.raises(ValueError) as caught:
        OpenAIOptions(urls=["localhost:8000"], timeout_s=0, concurrency=0, per_s=-1, retries=-1)
    assert re.fullmatch(
        "urls holds 'localhost:8000'; allowed: http://… and https://…; timeout_s .* 0; retries .* -1; concurrency .* 0;"
        " per_s .* -1",
        str(caught.value),
    )
    with pytest.raises(ValueError) as caught:
        OpenAIOptions(timeout_s=math.nan, per_s=math.inf, input_price=math.nan)
    assert [problem.split()[0] for problem in str(caught.value).split("; ")] == ["timeout_s", "per_s", "input_price"]
    with pytest.raises(ValueError) as caught:
        OpenAIOptions(urls=["https://host/v1?api-key=hunter2"], key_variable="my-own-key-9")
    assert str(caught.value) == (
        "urls holds 'https://host/v1' with a query or a fragment; allowed: a base, to which paths are added; "
        "key_variable holds no name of an environment variable (letters, digits and _); the key itself is never "
        "written down"
    )
    with pytest.raises(ValueError, match="urls is empty; allowed: one or more of"):
        OpenAIOptions(urls=[])
    assert OpenAIOptions(urls=["http://host:1/v1/"]).urls == ["http://host:1/v1"]


def test_a_server_that_refuses_a_request_is_well() -> None:
    """A prompt that is too long says nothing of the server: the next requests of a task stay there."""

    def answer(body: dict[str, Any]) -> str | RawReply:
        return RawReply(status=400, body="too long") if body["messages"][0]["content"] == "long" else "fine"

    with OpenAIServer(answer) as one, OpenAIServer(answer) as other:

        async def work(client: OpenAIClient) -> None:
            for number, task in enumerate("abcd", start=1):
                await client.chat(ASK, affinity=task)
                with pytest.raises(RequestRefused):
                    await client.chat(user_prompt("long"), affinity=task)
                await client.chat(ASK, affinity=task)
                counts = [len(server.requests) for server in (one, other)]
                assert sum(counts) == 3 * number and not any(count % 3 for count in counts)

        run(work, one.url, other.url)


def test_judges_of_other_servers_have_rates_of_their_own() -> None:
    async def work() -> None:
        with local_services() as services:
            for url, per_s in (("http://a/v1", 1.0), ("http://b/v1", 2.0)):
                client = OpenAIClient(OpenAIOptions(urls=[url], per_s=per_s), "rewards.llm_judge.params.server")
                await client.start(services)

    asyncio.run(work())
