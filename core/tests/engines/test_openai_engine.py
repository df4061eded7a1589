"""The engine `openai` against a server in this process: what is sent, what replies mean, and what drifts."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ramet.engines.config import OpenAIEngineConfig
from ramet.engines.openai import OpenAIEngine, check_servers
from ramet.engines.openai.completion_reply import read_reply
from ramet.engines.protocol import FinishReason, Request, Sampling
from ramet.errors import InfraError
from ramet.helpers.openai.options import OpenAIOptions
from ramet.models.encoder import Encoder
from ramet.testing import OpenAIServer, RawReply
from ramet.testing.chat_templates import chat_encoder
from ramet.testing.doubles import tiny_encoder


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return tiny_encoder()


@pytest.fixture
def server(encoder: Encoder) -> Iterator[OpenAIServer]:
    with OpenAIServer(lambda body: "<python>1</python> and more", encode=encoder.markup) as server:
        yield server


@asynccontextmanager
async def engine_of(encoder: Encoder, *urls: str, **more: Any) -> AsyncIterator[OpenAIEngine]:
    config = OpenAIEngineConfig(server=OpenAIOptions(urls=list(urls), retries=1), **more)
    engine = OpenAIEngine(config, encoder=encoder, max_tokens=1000)
    try:
        yield engine
    finally:
        await engine.close()


def request(encoder: Encoder, id: str = "r", task: str = "a", **sampling: Any) -> Request:
    chosen = {"max_tokens": 50, "stop": ("</python>",), "stop_token_ids": encoder.eos_ids, **sampling}
    key = f"eval/0/{task}/0"
    return Request(id=id, token_ids=encoder.markup("What?"), sampling=Sampling(**chosen), seed=7, cache_key=key)


def test_everything_that_decides_the_tokens_is_sent(encoder: Encoder, server: OpenAIServer) -> None:
    async def ask() -> None:
        sampling = {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1}
        async with engine_of(encoder, server.url, logprobs=True) as engine:
            completion = await engine.generate(request(encoder, **sampling))
        assert encoder.decode(completion.token_ids) == "<python>1</python>"
        assert (completion.finish, completion.stop) == (FinishReason.STOP, "</python>")
        (body,) = server.requests
        assert {name: body[name] for name in sampling} == sampling
        assert body["prompt"] == encoder.markup("What?").tolist()
        assert (body["stop"], body["seed"], body["max_tokens"], body["logprobs"]) == (["</python>"], 7, 50, 0)
        assert body["stop_token_ids"] == list(encoder.eos_ids)
        async with engine_of(encoder, server.url) as engine:
            await engine.generate(request(encoder, top_k=0))
        assert server.requests[-1]["top_k"] == -1  # off; not all servers take 0 for it
        assert body["return_token_ids"] and body["include_stop_str_in_output"] and not body["skip_special_tokens"]

    asyncio.run(ask())


def test_an_end_of_sequence_and_a_length_are_told_apart(encoder: Encoder) -> None:
    def answer(body: dict[str, Any]) -> str | RawReply:
        if body["max_tokens"] > 2:
            return "no call"
        return RawReply(body='{"choices": [{"text": "no", "finish_reason": "length", "token_ids": [1, 2]}]}')

    async def ask() -> None:
        with OpenAIServer(answer, encode=encoder.markup) as server:
            async with engine_of(encoder, server.url) as engine:
                ended = await engine.generate(request(encoder))
                cut = await engine.generate(request(encoder, max_tokens=2))
        assert (ended.finish, ended.stop, ended.token_ids[-1]) == (FinishReason.END, None, encoder.eos_ids[0])
        assert (cut.finish, cut.token_ids.tolist()) == (FinishReason.LENGTH, [1, 2])

    asyncio.run(ask())


def of_text(body: dict[str, Any]) -> str | RawReply:
    """A server that refuses token ids."""
    if isinstance(body["prompt"], list):
        return RawReply(status=400, body='{"error": {"message": "prompt must be a string"}}')
    return "<python>1</python>"


def test_a_text_without_ids_ends_with_the_token_that_the_template_ends_a_message_with() -> None:
    """And with none of the others that may end one, as `<|eom_id|>` of Llama 3.1."""
    encoder = chat_encoder("llama3.1")
    wanted = request(encoder)
    reply = read_reply({"choices": [{"text": "no", "finish_reason": "stop"}]}, wanted, encoder)
    assert len(wanted.sampling.stop_token_ids) == 2
    assert encoder.decode(reply.completion.token_ids) == "no<|eot_id|>"


def test_a_server_of_text_is_told_and_its_drift_is_counted(encoder: Encoder, caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> None:
        with OpenAIServer(of_text) as server:
            async with engine_of(encoder, server.url) as engine:
                first, second = await asyncio.gather(*(engine.generate(request(encoder, i)) for i in "01"))
                await engine.generate(request(encoder, "2"))
                assert encoder.decode(first.token_ids) == encoder.decode(second.token_ids) == "<python>1</python>"
                assert (first.finish, first.stop) == (FinishReason.STOP, "</python>")
                assert len(first.logprobs) == 0
                assert engine.metrics()["engine/drifted_requests"] == 3  # it counts words, we bytes
            assert Counter(type(body["prompt"]) for body in server.requests) == {list: 2, str: 3}

    with caplog.at_level(logging.WARNING):
        asyncio.run(ask())
    assert caplog.messages[0].startswith("engine.params.server: no token ids (")
    assert caplog.messages[0].endswith(
        "from here on text is sent and read, and its tokens may be others than those that the model sees and samples; "
        "requests that show it are counted as engine/drifted_requests"
    )
    assert caplog.messages[1] == "engine.params.server: 1 of 1 requests so far have other tokens as text than as ids"


def test_requests_in_flight_that_are_refused_as_ids_are_all_asked_as_text(encoder: Encoder) -> None:
    async def ask() -> None:
        with OpenAIServer(of_text) as server:
            async with engine_of(encoder, server.url) as engine:
                found = await asyncio.gather(*(engine.generate(request(encoder, str(i))) for i in range(8)))
        assert {encoder.decode(one.token_ids) for one in found} == {"<python>1</python>"}

    asyncio.run(ask())


def test_a_prompt_that_is_too_long_does_not_end_token_ids(encoder: Encoder) -> None:
    too_long = "This model's maximum context length is 40 tokens, your prompt has 50 tokens"

    def answer(body: dict[str, Any]) -> str | RawReply:
        return "fine" if body["max_tokens"] < 100 else RawReply(status=400, body=json.dumps({"message": too_long}))

    async def ask() -> None:
        with OpenAIServer(answer, encode=encoder.markup) as server:
            async with engine_of(encoder, server.url) as engine:
                with pytest.raises(InfraError, match="maximum context length"):
                    await engine.generate(request(encoder, max_tokens=100))
                await engine.generate(request(encoder))
            assert isinstance(server.requests[-1]["prompt"], list)

    asyncio.run(ask())


def test_the_rollouts_of_a_task_stay_at_one_server_while_it_works(encoder: Encoder) -> None:
    async def ask() -> None:
        with OpenAIServer(lambda body: "x") as one, OpenAIServer(lambda body: "x") as other:
            async with engine_of(encoder, one.url, other.url, token_ids=False) as engine:
                for task in "abcdefghijklmnopqrst":
                    before = len(one.requests), len(other.requests)
                    await asyncio.gather(*(engine.generate(request(encoder, f"{task}{i}", task)) for i in range(3)))
                    grown = len(one.requests) - before[0], len(other.requests) - before[1]
                    assert sorted(grown) == [0, 3]
                assert one.requests and other.requests
                one.__exit__(None, None, None)
                for task in "abcdefgh":  # a server that is lost costs attempts, no requests
                    await engine.generate(request(encoder, f"again{task}", task))

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (
            '{"choices": [{"text": "half", "finish_reason": "abort"}]}',
            "request 'r': the server cut its reply off (abort)",
        ),
        ('{"choices": [{"text": null}]}', "request 'r': the server's reply has no choice with a text"),
        (
            '{"choices": [{"text": "a", "token_ids": ["a"]}]}',
            "request 'r': the server's token_ids are not token ids: 'str' object cannot be interpreted as an integer",
        ),
    ],
)
def test_replies_that_are_none_are_infrastructure(encoder: Encoder, body: str, problem: str) -> None:
    async def ask() -> None:
        with OpenAIServer(lambda _: RawReply(body=body)) as server:
            async with engine_of(encoder, server.url) as engine:
                with pytest.raises(InfraError) as caught:
                    await engine.generate(request(encoder))
                assert str(caught.value) == problem
                assert engine.metrics()["engine/failed_requests"] == 1

    asyncio.run(ask())


def test_an_aborted_request_returns_and_a_cancelled_one_is_cancelled(encoder: Encoder) -> None:
    async def ask() -> None:
        answering = threading.Event()
        with OpenAIServer(lambda body: "x" if answering.wait(30) else "late") as server:
            async with engine_of(encoder, server.url) as engine:
                waiting = [asyncio.create_task(engine.generate(request(encoder, str(i)))) for i in range(3)]
                await asyncio.sleep(0.05)
                engine.abort("0")
                waiting[1].cancel()
                aborted = await waiting[0]
                assert (aborted.finish, aborted.token_ids) == (FinishReason.ABORT, array("i"))
                with pytest.raises(asyncio.CancelledError):
                    await waiting[1]
                answering.set()
                assert (await waiting[2]).finish is FinishReason.END

    asyncio.run(ask())


def test_servers_are_asked_before_the_start(server: OpenAIServer, caplog: pytest.LogCaptureFixture) -> None:
    gone = "http://127.0.0.1:9/v1"

    def config(*urls: str, model: str | None = None) -> OpenAIEngineConfig:
        return OpenAIEngineConfig(server=OpenAIOptions(urls=list(urls), model=model, retries=0))

    assert check_servers(config(server.url)) == []
    assert check_servers(config(server.url, model="large")) == [
        f"engine.params.server.model is 'large'; {server.url} offers: tiny"
    ]
    (problem,) = check_servers(config(gone))
    assert problem.startswith(f"engine.params.server: {gone}/models: ")
    with caplog.at_level(logging.WARNING):
        assert check_servers(config(server.url, gone)) == []
    assert caplog.messages[0].startswith("a server of the pool does not answer, the others serve: engine.params.server")
