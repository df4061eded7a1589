"""Bad input of the gateway, as `docs/bad_input.md` lists it: a clear 4xx in the dialect's form, nothing recorded."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="ramet[openai] is not installed")

from core.tests.rollout.gateway.conftest import LARGE, Recorded, Served, check_exact, rollout_of, run, settings_of

from ramet.rollout.gateway import server
from ramet.rollout.gateway.session import AgentSession
from ramet.testing.chat_templates import chat_encoder
from ramet.testing.doubles import ScriptedEngine

CHAT, RESPONSES, COMPLETIONS = "/v1/chat/completions", "/v1/responses", "/v1/completions"
MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
OPENAI, ANTHROPIC = (CHAT, RESPONSES, COMPLETIONS), (MESSAGES, COUNT)
USER = {"role": "user", "content": "What is 1 + 1?"}
GOOD: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [USER]},
    RESPONSES: {"model": "m", "input": [USER]},
    COMPLETIONS: {"model": "m", "prompt": "What is 1 + 1?"},
    MESSAGES: {"model": "m", "messages": [USER], "max_tokens": 9},
    COUNT: {"model": "m", "messages": [USER]},
}
KINDS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large"}  # Anthropic's


def talk(path: str) -> str:
    """The field of the conversation."""
    return next(field for field in ("messages", "input", "prompt") if field in GOOD[path])


def with_fields(path: str, **fields: Any) -> bytes:
    return json.dumps({**GOOD[path], **fields}).encode()


def with_text(path: str, text: bytes) -> bytes:
    """A good body with these bytes in the conversation's text."""
    return with_fields(path).replace(b"1 + 1", text)


def deep(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


def check_error(path: str, status: int, error: Any) -> str:
    """The message of an error, which has the form of the path's dialect."""
    if path in ANTHROPIC:
        assert set(error) == {"type", "error"} and error["type"] == "error"
        assert set(error["error"]) == {"type", "message"}
        assert error["error"]["type"] == KINDS.get(status, "invalid_request_error")
    else:
        assert set(error) == {"error"} and set(error["error"]) == {"message", "type", "param", "code"}
        assert error["error"]["type"] == (KINDS[401] if status == 401 else "invalid_request_error")
    return str(error["error"]["message"])


async def send(served: Served, path: str, body: bytes, method: str = "POST", **headers: str) -> tuple[int, Any]:
    given = served.headers(**headers)
    async with served.http.request(method, f"{served.url}{path}", data=body, headers=given) as response:
        return response.status, json.loads(await response.read())


BODIES: list[tuple[str, Callable[[str], bytes], int, str]] = [
    ("not JSON", lambda path: b"{", 400, "the body is not JSON"),
    ("empty", lambda path: b"", 400, "the body is not JSON"),
    ("a list", lambda path: b"[1]", 400, "the body must be a JSON object, got list"),
    ("invalid UTF-8", lambda path: with_text(path, b"\xff"), 400, "can't decode byte 0xff"),
    ("UTF-16", lambda path: with_fields(path).decode().encode("utf-16"), 400, "can't decode byte 0xff"),
    ("a raw control character", lambda path: with_text(path, b"\x00"), 400, "Invalid control character"),
    ("a lone surrogate", lambda path: with_text(path, rb"\ud800"), 400, "half of a surrogate pair"),
    ("a lone surrogate in a name", lambda path: with_fields(path, **{"\udfff": 1}), 400, "half of a surrogate pair"),
    ("a number of 5000 digits", lambda path: b'{"seed": ' + b"1" * 5000 + b"}", 400, "the body is not JSON"),
    ("NaN", lambda path: with_fields(path, temperature=float("nan")), 400, "NaN is not a number of JSON"),
    ("1e999", lambda path: with_fields(path, temperature="#").replace(b'"#"', b"1e999"), 400, "got inf"),
    ("deep nesting", lambda path: with_fields(path, user=json.loads(deep(70))), 400, "nested more than 64 levels deep"),
    ("endless nesting", lambda path: deep(100_000), 400, "the body is not JSON"),
    ("a huge body", lambda path: with_text(path, b"x" * 300_000), 413, "the body has more than"),
    ("an unknown parameter", lambda path: with_fields(path, no_such=1), 400, "unknown parameter: no_such"),
    ("no conversation", lambda path: with_fields(path, **{talk(path): None}), 400, ""),
    ("an empty conversation", lambda path: with_fields(path, **{talk(path): []}), 400, ""),
    ("a number as conversation", lambda path: with_fields(path, **{talk(path): 5}), 400, "got 5"),
    ("a list of numbers", lambda path: with_fields(path, **{talk(path): [5, 6]}), 400, ""),
    ("a model that is not a text", lambda path: with_fields(path, model=5), 400, "model must be a text, got 5"),
    ("n over 1", lambda path: with_fields(path, n=2), 400, "every reply is a turn of the rollout"),
    ("logit_bias", lambda path: with_fields(path, logit_bias={"5": 1}), 400, "logit_bias is not supported"),
]
NO_N = {RESPONSES: "unknown parameter: n"}  # this dialect has no such parameter


def part_of(path: str, kind: str) -> bytes:
    """A body whose user sends something other than text."""
    return with_fields(path, **{talk(path): [{"role": "user", "content": [{"type": kind, kind: {"url": "data:,"}}]}]})


def tool_of(path: str, name: Any, schema: Any) -> bytes:
    """A body that offers one tool."""
    function = {"name": name, ("input_schema" if path in ANTHROPIC else "parameters"): schema}
    forms = {CHAT: {"type": "function", "function": function}, RESPONSES: {"type": "function", **function}}
    return with_fields(path, tools=[forms.get(path, function)])


def result_of(path: str, call_id: Any) -> bytes:
    """A body with a tool's result, and no call before it."""
    if path in ANTHROPIC:
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": "2"}]}
    elif path == RESPONSES:
        result = {"type": "function_call_output", "call_id": call_id, "output": "2"}
    else:
        result = {"role": "tool", "tool_call_id": call_id, "content": "2"}
    return with_fields(path, **{talk(path): [USER, result]})


PARTS = [(CHAT, "image_url"), (CHAT, "input_audio"), (CHAT, "file"), (RESPONSES, "input_image")]
PARTS += [(RESPONSES, "input_file"), *((path, kind) for path in ANTHROPIC for kind in ("image", "document"))]
TOOLS: list[tuple[Any, Any, str]] = [
    (None, {}, ".name must be a text, got None"),
    ("", {}, ".name must have 1 to 128 letters, digits and _ . : / -, got ''"),
    ("<tool_call>", {}, ".name must have 1 to 128 letters"),
    ("x" * 129, {}, ".name must have 1 to 128 letters"),
    ("add", 5, " must be an object, got 5"),
    ("add", {"type": "string"}, ".type must be object, got 'string'"),
    ("add", {"properties": ["a"]}, ".properties must be an object, got ['a']"),
    ("add", {"properties": {"a": 5}}, ".properties.a must be an object, got 5"),
    ("add", {"required": "a"}, ".required must be a list, got 'a'"),
    ("add", {"required": [1]}, ".required[0] must be a text, got 1"),
]
NO_CALL = "no earlier message has the call 'c' of a result"
CASES = [
    *((path, name, make(path), *rest) for path in GOOD for name, make, *rest in BODIES),
    *((path, kind, part_of(path, kind), 400, "are not supported, only") for path, kind in PARTS),
    *(
        (path, "a tool", tool_of(path, name, schema), 400, words)
        for path in (CHAT, RESPONSES, *ANTHROPIC)
        for name, schema, words in TOOLS
    ),
    *((path, "a result", result_of(path, "c"), 400, NO_CALL) for path in (CHAT, RESPONSES, *ANTHROPIC)),
    *((path, "a result", result_of(path, 5), 400, "must be a text, got 5") for path in (CHAT, RESPONSES, *ANTHROPIC)),
    (CHAT, "no content", with_fields(CHAT, messages=[{"role": "user"}]), 400, "messages[0].content must be a list"),
    (RESPONSES, "no content", with_fields(RESPONSES, input=[{"role": "user"}]), 400, "input[0].content must be a list"),
    (MESSAGES, "no content", with_fields(MESSAGES, messages=[{"role": "user"}]), 400, "messages[0].content must be"),
    (CHAT, "a call of old", with_fields(CHAT, messages=[{**USER, "function_call": {}}]), 400, "give tool_calls"),
]


@pytest.mark.parametrize("path", GOOD)
def test_a_bad_body_is_refused_in_the_dialects_form_and_nothing_is_lost(
    serve: Any, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """All rows in one session, between two good requests of one conversation."""
    monkeypatch.setattr(server, "MAX_BODY", 250_000)

    async def main() -> None:
        async with serve(lambda prompt: "two") as served:
            assert (await served.post(CHAT, GOOD[CHAT]))[0] == 200
            for case_path, name, body, expected, words in CASES:
                if case_path != path:
                    continue
                for stream in (False, True):
                    status, error = await send(
                        served, path, body.replace(b'"model"', b'"stream": true, "model"', stream)
                    )
                    assert status == expected, (name, error)
                    message = check_error(path, status, error)
                    assert (NO_N.get(path, words) if name == "n over 1" else words) in message, name
            after = {"messages": [USER, {"role": "assistant", "content": "two"}, USER], "model": "m"}
            assert (await served.post(CHAT, after))[0] == 200
            assert len(served.engine.seen) == 2 and len(served.check().threads) == 1

    run(main)


@pytest.mark.parametrize("path", [*GOOD, "/v1/models", "/v1/responses/resp_1"])
def test_a_wrong_key_and_a_session_that_has_ended_are_refused(serve: Any, path: str) -> None:
    method = "POST" if path in GOOD else "GET"
    body = json.dumps(GOOD.get(path)).encode()

    async def main() -> None:
        async with serve(lambda prompt: "two") as served:
            for wrong in ("", "Bearer", "Bearer ramet-guess", f"Basic {served.key}", "Bearer \u00e4", "x" * 5000):
                status, error = await send(served, path, body, method, Authorization=wrong)
                assert status == 401 and "key" in check_error(path, status, error)
            for guess in ("guess", "v1", "..%2F", "%00"):
                status, error = await send(served, f"/s/{guess}{path}", body, method)
                assert status == 401 and "no session has this key" in check_error(path, status, error)
            if path in GOOD:
                served.session.end()  # while the key is still known
                status, error = await send(served, path, body)
                assert status == 404 and check_error(path, status, error) == "this session has ended"
            served.gateway.close(served.key)
            status, error = await send(served, path, body, method)
            assert status == 401 and "the session has ended" in check_error(path, status, error)
            assert not served.engine.seen

    run(main)


@pytest.mark.parametrize(
    ("method", "path", "status", "dialect"),
    [
        ("GET", "/", 404, CHAT),
        ("POST", "/chat/completions", 404, CHAT),
        ("POST", "/v1/chat/completions/", 404, CHAT),
        ("POST", "//v1/chat/completions", 404, CHAT),
        ("POST", "/v1/embeddings", 404, CHAT),
        ("GET", "/v1/models/m", 404, CHAT),
        ("POST", "/s/key/v1/messages/batches", 404, MESSAGES),
        ("GET", CHAT, 405, CHAT),
        ("PUT", RESPONSES, 405, RESPONSES),
        ("OPTIONS", COMPLETIONS, 405, COMPLETIONS),
        ("DELETE", "/v1/responses/resp_1", 405, CHAT),
        ("POST", "/v1/models", 405, CHAT),
        ("GET", MESSAGES, 405, MESSAGES),
        ("GET", f"/s/key{COUNT}", 405, COUNT),
    ],
)
def test_unknown_paths_and_methods_are_refused_in_the_dialects_form(
    serve: Any, method: str, path: str, status: int, dialect: str
) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "two") as served:
            found, error = await send(served, path, b"{}", method)
            words = {404: "nothing is served at this path", 405: f"{method} is not supported here, only "}[status]
            assert found == status and words in check_error(dialect, status, error)
            _, error = await send(served, "/v1/models/m", b"", "GET", **{"anthropic-version": "2023-06-01"})
            check_error(MESSAGES, 404, error)

    run(main)


@pytest.mark.parametrize("path", GOOD)
def test_a_compressed_body_and_one_that_breaks_off_are_refused(serve: Any, path: str, caplog: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "two") as served:
            for coding in ("gzip", "br", "zstd", "none"):
                body = gzip.compress(with_fields(path)) if coding == "gzip" else with_fields(path)
                status, error = await send(served, path, body, **{"Content-Encoding": coding})
                assert status == 415 and "must not be compressed" in check_error(path, status, error)
            _, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
            head = (
                f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {served.key}\r\nContent-Length: 99\r\n\r\n{{"
            )
            writer.write(head.encode())
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.close()
            await asyncio.sleep(0.05)
            assert not served.engine.seen and rollout_of(served.session).segments == ()

    run(main)
    assert caplog.records == []  # a client that leaves is not a fault of the gateway


def test_what_is_not_http_is_a_plain_400(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "two") as served:
            for head in ("GARBAGE", f"POST {CHAT} HTTP/1.1\r\nAuthorization: {'x' * 9000}"):
                reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
                writer.write(f"{head}\r\n\r\n".encode())
                assert b" 400 " in await asyncio.wait_for(reader.readline(), 5)
                writer.close()

    run(main)


def test_a_session_never_sees_another_ones_ids_or_replies(serve: Any) -> None:
    encoder = chat_encoder("qwen2.5")
    engine = Recorded(ScriptedEngine(lambda task, path, turn: "three", encoder))
    other = AgentSession("gateway/1/s/0", settings_of(engine, encoder, LARGE))

    async def main() -> None:
        async with serve(lambda prompt: "two") as served:
            key = {"Authorization": f"Bearer {served.gateway.open(other)}"}
            retry = {"Idempotency-Key": "k", "x-stainless-retry-count": "1"}
            _, reply = await served.post(RESPONSES, GOOD[RESPONSES], **retry)
            [message] = reply["output"]
            again = {"model": "m", "previous_response_id": reply["id"], "input": [USER]}
            item = {"model": "m", "input": [USER, {"type": "item_reference", "id": message["id"]}, USER]}
            for body in (again, item):
                status, error = await served.post(RESPONSES, body, **key)
                assert status == 404 and "this session" in check_error(RESPONSES, status, error)
            status, error = await served.get(f"{RESPONSES}/{reply['id']}", **key)
            assert status == 404 and "this session has no response" in check_error(RESPONSES, status, error)
            assert not engine.seen
            _, mine = await served.post(RESPONSES, GOOD[RESPONSES], **key, **retry)
            assert mine["output"][0]["content"][0]["text"] == "three" and mine["id"] != reply["id"]
            _, unlike = await served.post(RESPONSES, {**GOOD[RESPONSES], "input": "What else?"}, **key, **retry)
            assert unlike["id"] != mine["id"]  # another body with the same key
            served.check()
            check_exact(other, engine)

    run(main)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_long_conversations_and_escaped_control_characters_are_served(serve: Any, path: str) -> None:
    many = [USER, {"role": "assistant", "content": "two"}] * 5000
    strange = {"role": "user", "content": "\x00\x1b[31m\u202e\U0001f600"}

    async def main() -> None:
        async with serve(lambda prompt: "two", limits=LARGE) as served:
            for messages in ([*many, USER], [strange]):
                assert (await served.post(path, {**GOOD[path], talk(path): messages}))[0] == 200
            encoder = served.engine.engine.encoder
            assert strange["content"] in encoder.decode(served.engine.seen[1][0])
            served.check()

    run(main)


def test_a_conversation_that_the_chat_template_does_not_take_is_refused_in_few_words(serve: Any) -> None:
    calls = [{"id": id, "function": {"name": "add", "arguments": "{"}} for id in ("c1", "c2")]
    many = [USER] * 5000

    async def main() -> None:
        async with serve(lambda prompt: "two", family="llama3.1") as served:
            messages = [*many, {"role": "assistant", "content": "", "tool_calls": calls}, USER]
            status, error = await served.post(CHAT, {"model": "m", "messages": messages})
            message = check_error(CHAT, status, error)
            assert status == 400 and "only one call at a time" in message and len(message) < 500
            assert not served.engine.seen

    run(main)
