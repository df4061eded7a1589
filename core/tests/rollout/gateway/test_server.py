"""The gateway over HTTP: keys, bodies, streams and errors, in the dialect of `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

aiohttp = pytest.importorskip("aiohttp", reason="needs ramet[openai]")

from core.tests.rollout.gateway.conftest import Open, check_exact, rollout_of  # noqa: E402

from ramet.errors import ConfigError  # noqa: E402
from ramet.rollout.gateway import server  # noqa: E402
from ramet.rollout.gateway.server import Gateway  # noqa: E402
from ramet.rollout.gateway.session import SessionLimits  # noqa: E402
from ramet.testing.doubles import Reply  # noqa: E402

ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
CALL = 'Let me add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
Post = Callable[..., Coroutine[Any, Any, tuple[int, Any]]]
PATH = "/v1/chat/completions"


def served(opened: Open, script: Any, talk: Callable[..., Coroutine[Any, Any, None]], **limits: Any) -> tuple[Any, Any]:
    """Serve one session to `talk(post, key, gateway)`."""
    session, engine = opened(script, **limits)

    async def main() -> None:
        async with Gateway() as gateway, aiohttp.ClientSession() as client:
            key = gateway.open(session)

            async def post(body: Any, *, path: str = PATH, key: str | None = key, **headers: str) -> tuple[int, Any]:
                given = {} if key is None else {"Authorization": f"Bearer {key}"}
                data = body if isinstance(body, bytes) else json.dumps(body)
                async with client.post(gateway.url + path, data=data, headers=given | headers) as response:
                    text = await response.text()
                    streamed = response.content_type == "text/event-stream"
                    return response.status, text if streamed else json.loads(text)

            await talk(post, key, gateway)

    asyncio.run(main())
    return session, engine


def body(*messages: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "policy", "messages": list(messages), **fields}


USER = {"role": "user", "content": "What is 1 + 1?"}


def test_a_tool_loop_is_one_thread(opened: Open) -> None:
    async def talk(post: Post, key: str, gateway: Gateway) -> None:
        status, first = await post(body(USER, tools=[ADD]))
        assert status == 200
        message = first["choices"][0]["message"]
        assert first["choices"][0]["finish_reason"] == "tool_calls" and message["content"] == "Let me add."
        [call] = message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"a": 1}
        result = {"role": "tool", "tool_call_id": call["id"], "content": "2"}
        _, second = await post(body(USER, message, result, tools=[ADD], temperature=0.3))
        assert second["choices"][0]["message"]["content"] == "two"
        assert second["usage"]["completion_tokens"] == 4

    session, engine = served(opened, lambda task, path, turn: CALL if turn == 0 else "two", talk)
    rollout = check_exact(session, engine)
    assert len(rollout.threads) == 1 and [s.turn for s in rollout.segments] == [0, 0, 1, 1]


def test_a_stream_has_the_same_reply_in_events(opened: Open) -> None:
    async def talk(post: Post, key: str, gateway: Gateway) -> None:
        status, text = await post(body(USER, tools=[ADD], stream=True, stream_options={"include_usage": True}))
        *events, end = [event.removeprefix("data: ") for event in text.strip().split("\n\n")]
        assert status == 200 and end == "[DONE]"
        chunks = [json.loads(event) for event in events]
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
        assert "".join(delta.get("content") or "" for delta in deltas) == "Let me add."
        assert [delta["tool_calls"][0]["function"]["name"] for delta in deltas if "tool_calls" in delta] == ["add"]
        assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls" and chunks[-1]["usage"]["total_tokens"] > 0

    check_exact(*served(opened, lambda task, path, turn: CALL, talk))


def test_a_slow_stream_is_kept_open_by_comments(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.05)

    async def talk(post: Post, key: str, gateway: Gateway) -> None:
        status, text = await post(body(USER, stream=True))
        assert status == 200 and text.startswith(": waiting\n\n") and text.endswith("data: [DONE]\n\n")
        status, text = await post(body({"role": "user", "content": "again"}, stream=True))
        assert status == 200 and "engine is down" in text

    def script(task: str, path: str, turn: int) -> Reply:
        return Reply(text="two", rest_s=0.2) if turn == 0 else Reply(text="", first_s=0.2, fails="engine is down")

    served(opened, script, talk)


def test_a_key_is_a_session_and_a_path_can_carry_it(opened: Open) -> None:
    other, other_engine = opened(lambda task, path, turn: "three")

    async def talk(post: Post, key: str, gateway: Gateway) -> None:
        second = gateway.open(other)
        assert (await post(body(USER)))[1]["choices"][0]["message"]["content"] == "two"
        _, reply = await post(body(USER), key=None, path=f"/s/{second}{PATH}")
        assert reply["choices"][0]["message"]["content"] == "three"
        for wrong in (None, "ramet-guess"):
            status, error = await post(body(USER), key=wrong)
            assert status == 401 and error["error"]["code"] == "invalid_api_key"
        gateway.close(second)
        assert (await post(body(USER), key=second))[0] == 401

    session, engine = served(opened, lambda task, path, turn: "two", talk)
    assert len(engine.seen) == len(other_engine.seen) == 1
    check_exact(session, engine)


@pytest.mark.parametrize("guess", ["v1", "a%2Fv1%2Fb"])
def test_a_guessed_key_in_the_path_is_only_a_wrong_key(opened: Open, guess: str) -> None:
    async def talk(post: Post, key: str, gateway: Gateway) -> None:
        status, error = await post(body(USER), key=None, path=f"/s/{guess}{PATH}")
        assert (status, error["error"]["code"]) == (401, "invalid_api_key")

    served(opened, lambda task, path, turn: "two", talk)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_in_flight_at_the_end_of_its_session_is_refused(opened: Open, stream: bool) -> None:
    asked: list[int] = []

    def script(task: str, path: str, turn: int) -> Reply:
        asked.append(turn)
        return Reply(text="two", rest_s=60)

    async def talk(post: Post, key: str, gateway: Gateway) -> None:
        running = asyncio.create_task(post(body(USER, stream=stream)))
        while not asked and not running.done():
            await asyncio.sleep(0.01)
        gateway.close(key)
        status, error = await asyncio.wait_for(running, 30)
        assert (status, error["error"]["code"]) == (404, "session_ended")

    session, engine = served(opened, script, talk)
    assert engine.engine.aborted and check_exact(session, engine).n_sampled_tokens == 0


def test_a_retry_makes_no_second_turn(opened: Open) -> None:
    async def talk(post: Post, key: str, gateway: Gateway) -> None:
        first = await post(body(USER), **{"x-stainless-retry-count": "0"})
        again = await post(body(USER), **{"x-stainless-retry-count": "1"})
        assert first == again
        named = await asyncio.gather(*(post(body(USER), **{"Idempotency-Key": "k"}) for _ in range(2)))
        assert named[0] == named[1]
        assert (await post(body(USER)))[1]["id"] != first[1]["id"]

    session, engine = served(opened, lambda task, path, turn: f"answer {turn}", talk)
    assert len(engine.seen) == 3
    check_exact(session, engine)


@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        (b"{", "the body is not JSON"),
        (b"[1]", "the body must be a JSON object, got list"),
        ({"model": "m"}, "messages must be a list, got None"),
        (body(), "messages must not be empty"),
        (body({"role": "robot", "content": ""}), "messages[0].role: 'robot' must be one of system, developer, user"),
        (body({"role": "user", "content": 5}), "messages[0].content must be a list, got 5"),
        (body({"role": "user", "content": [{"type": "image_url"}]}), "parts of type 'image_url' are not supported"),
        (body(USER, n=2), "n must be 1"),
        (body(USER, logit_bias={"1": 1}), "logit_bias is not supported: the policy's own distribution is trained"),
        (body(USER, response_format={"type": "json_object"}), "response_format is not supported"),
        (body(USER, tool_choice="required"), "tool_choice must be auto or none, got 'required'"),
        (body(USER, max_tokens=0), "max_tokens must be an integer of at least 1, got 0"),
        (body(USER, temperature="hot"), "temperature must be a number, got 'hot'"),
        (body(USER, tools=[{"type": "web_search"}]), "tools[0].type must be function, got 'web_search'"),
        (body(USER, tools=[{"type": "function", "function": {}}]), "tools[0].function.name must be a text, got None"),
        (body(USER, no_such=1), "unknown parameter: no_such"),
        (body(USER, stream="yes"), "stream must be true or false, got 'yes'"),
        (body(USER, stream=True, stream_options="usage"), "stream_options must be an object, got 'usage'"),
        (body(USER, stop=["a", ""]), "stop[1] must not be empty"),
    ],
)
def test_bad_input_is_a_400_that_names_the_field(opened: Open, request_body: Any, message: str) -> None:
    async def talk(post: Post, key: str, gateway: Gateway) -> None:
        status, error = await post(request_body)
        assert status == 400 and error["error"]["type"] == "invalid_request_error"
        assert message in error["error"]["message"]

    session, _ = served(opened, lambda task, path, turn: "two", talk)
    assert rollout_of(session).segments == ()


def test_a_body_that_is_too_large_and_an_engine_that_is_down(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BODY", 1000)

    async def talk(post: Post, key: str, gateway: Gateway) -> None:
        assert (await post(body({"role": "user", "content": "x" * 2000})))[0] == 413
        status, error = await post(body(USER))
        assert status == 503 and "engine is down" in error["error"]["message"]

    session, _ = served(opened, lambda task, path, turn: Reply(text="", fails="engine is down"), talk)
    assert rollout_of(session).n_sampled_tokens == 0


def test_a_used_up_budget_is_the_error_at_which_agents_compact(opened: Open) -> None:
    async def talk(post: Post, key: str, gateway: Gateway) -> None:
        assert (await post(body(USER)))[0] == 200
        status, error = await post(body(USER))
        assert status == 400 and error["error"]["code"] == "context_length_exceeded"

    served(opened, lambda task, path, turn: "two", talk, limits=SessionLimits(max_turns=1, max_tokens=99))


def test_an_address_in_use_is_named() -> None:
    async def main() -> None:
        async with Gateway() as first:
            port = int(first.url.rpartition(":")[2])
            with pytest.raises(ConfigError, match=rf"gateway: cannot listen at 127\.0\.0\.1:{port}"):
                async with Gateway(port=port):
                    pass

    asyncio.run(main())
