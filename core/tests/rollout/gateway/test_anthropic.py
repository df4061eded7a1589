"""The dialect of `/v1/messages`: bodies written by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs ramet[openai]")

from core.tests.rollout.gateway.conftest import rollout_of, run

from ramet.rollout.gateway import server
from ramet.rollout.gateway.session import SessionLimits
from ramet.testing.doubles import Reply

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "cache_control": {"type": "ephemeral"},
}
USER = {"role": "user", "content": "What is 1 + 2?"}


def call(name: str = "add", **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def calculator(prompt: str) -> str:
    """Two calls with a text, then the results with a thought."""
    results = prompt.rpartition("assistant")[0].count("<tool_response>")
    if results == 0:
        return f"I add.\n{call(a=1, b=2)}\n{call(a=3, b=4)}"
    return f"<think>{results} results</think>\n\nDone with {results}."


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 1000, "messages": list(messages), **fields}


def text(words: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def result_of(use: dict[str, Any], content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": use["id"], "content": content, **fields}


def test_a_tool_loop_is_one_thread(serve: Any) -> None:
    async def main() -> None:
        async with serve(calculator) as served:
            ask = {"tools": [ADD], "system": [text("Be brief.", cache_control={"type": "ephemeral"}), text("Add.")]}
            status, first = await served.post(PATH, body(USER, **ask))
            assert status == 200, first
            assert (first["type"], first["role"], first["model"], first["stop_reason"]) == (
                *("message", "assistant", "m"),
                "tool_use",
            )
            said, one, other = first["content"]
            assert said == text("I add.") and (one["type"], one["name"], one["input"]) == (
                "tool_use",
                "add",
                {"a": 1, "b": 2},
            )
            assert other["input"] == {"a": 3, "b": 4} and other["id"] != one["id"]
            blocks = [result_of(one, "3"), result_of(other, [text("7"), text("!")], is_error=False), text("Go.")]
            messages = [USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": blocks}]
            _, second = await served.post(PATH, body(*messages, **ask))
            thoughts, answer = second["content"]
            assert (thoughts["type"], thoughts["thinking"]) == ("thinking", "2 results") and thoughts["signature"]
            assert answer == text("Done with 2.") and second["stop_reason"] == "end_turn"
            messages += [{"role": "assistant", "content": second["content"]}, {"role": "user", "content": "Sure?"}]
            assert (await served.post(PATH, body(*messages, **ask)))[0] == 200
            rollout = served.check()
            assert len(rollout.threads) == 1 and len(served.engine.seen) == 3
            prompt = served.engine.engine.encoder.decode(served.engine.seen[1][0])
            assert "Be brief.\nAdd." in prompt
            order = [prompt.index(part) for part in ("\n3\n", "\n7\n!\n", "Go.")]
            assert order == sorted(order)

    run(main)


def test_the_key_is_in_a_header_of_its_own(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes") as served:
            version = {"anthropic-version": "2023-06-01", "anthropic-beta": "x", "Authorization": ""}
            for path in (PATH, f"{PATH}?beta=true"):
                assert (await served.post(path, body(USER), **version, **{"x-api-key": served.key}))[0] == 200
            assert (await served.post(f"/s/{served.key}{PATH}", body(USER), Authorization=""))[0] == 200
            for headers in ({}, {"x-api-key": "no"}):
                for path in (PATH, COUNT):
                    status, error = await served.post(path, body(USER), Authorization="", **headers)
                    assert status == 401 and error["type"] == "error"
                    assert error["error"]["type"] == "authentication_error"
            served.check()

    run(main)


def test_a_stream_has_the_events_in_the_order_that_clients_expect(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: f"<think>hm</think>\n\nI add.\n{call(a=1, b=2)}") as served:
            events = await served.events(PATH, body(USER, tools=[ADD], stream=True))
            assert all(name == data["type"] for name, data in events)
            block = ["content_block_start", "content_block_delta", "content_block_stop"]
            thinking = [block[0], block[1], *block[1:]]
            assert [name for name, _ in events] == [
                *("message_start", *thinking, *block, *block, "message_delta", "message_stop")
            ]
            indices = [data["index"] for _, data in events if "index" in data]
            assert indices == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
            deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
            kinds = [delta["type"] for delta in deltas]
            assert kinds == ["thinking_delta", "signature_delta", "text_delta", "input_json_delta"]
            assert (deltas[0]["thinking"], deltas[2]["text"]) == ("hm", "I add.")
            assert json.loads(deltas[3]["partial_json"]) == {"a": 1, "b": 2}
            begun, last = events[0][1]["message"], events[-2][1]
            assert (begun["content"], begun["stop_reason"]) == ([], None)
            assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
            prompt, sampled = served.engine.seen[0]
            assert begun["usage"]["input_tokens"] == len(prompt) and last["usage"]["output_tokens"] == len(sampled)
            served.check()

    run(main)


def test_a_slow_stream_is_kept_open_by_pings_and_may_end_in_an_error(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.05)

    def script(prompt: str) -> Reply:
        return Reply(text="", first_s=0.2, fails="down") if "Two?" in prompt else Reply(text="two", rest_s=0.2)

    async def main() -> None:
        async with serve(script) as served:
            names = [name for name, _ in await served.events(PATH, body(USER, stream=True))]
            assert names[0] == "ping" and names[-1] == "message_stop"
            two = {"role": "user", "content": "Two?"}
            name, data = (await served.events(PATH, body(two, stream=True)))[-1]
            assert name == "error" and data["error"]["type"] == "api_error" and "down" in data["error"]["message"]
            served.check()

    run(main)


@pytest.mark.parametrize(
    ("fields", "reason", "stop"),
    [
        ({"stop_sequences": ["END", "STOP"]}, "stop_sequence", "STOP"),
        ({"max_tokens": 4}, "max_tokens", None),
        ({}, "end_turn", None),
    ],
)
def test_a_reply_says_why_it_ended(serve: Any, fields: Any, reason: str, stop: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "one STOP two") as served:
            _, first = await served.post(PATH, body(USER, **fields))
            assert (first["stop_reason"], first["stop_sequence"]) == (reason, stop)
            assert first["content"][0]["text"] == {"stop_sequence": "one", "max_tokens": "one"}.get(
                reason, "one STOP two"
            )
            events = await served.events(PATH, body(USER, **fields, stream=True))
            assert events[-2][1]["delta"] == {"stop_reason": reason, "stop_sequence": stop}
            messages = [USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": "And?"}]
            assert (await served.post(PATH, body(*messages, **fields)))[0] == 200
            prompt, sampled = served.engine.seen[0]
            assert served.engine.seen[2][0][: len(prompt) + len(sampled)] == prompt + sampled
            served.check()

    run(main)


def test_a_count_is_exact_and_not_recorded(serve: Any) -> None:
    async def main() -> None:
        async with serve(calculator) as served:
            ask = {"model": "m", "tools": [ADD], "system": "Be brief."}
            assert (await served.post(COUNT, {**ask, "messages": [USER], "no_such": 1}))[0] == 400
            _, counted = await served.post(COUNT, {**ask, "messages": [USER]})
            assert not served.engine.seen and rollout_of(served.session).segments == ()
            _, first = await served.post(PATH, body(USER, **ask))
            assert counted == {"input_tokens": len(served.engine.seen[0][0])}
            results = [result_of(block, "3") for block in first["content"] if block["type"] == "tool_use"]
            messages = [USER, {"role": "assistant", "content": first["content"]}]
            assert (await served.post(COUNT, {**ask, "messages": messages}))[0] == 200
            messages += [{"role": "user", "content": results}]
            _, counted = await served.post(f"/s/{served.key}{COUNT}", {**ask, "messages": messages}, Authorization="")
            _, second = await served.post(PATH, body(*messages, **ask))
            assert counted == {"input_tokens": len(served.engine.seen[1][0])}
            usage = second["usage"]
            assert usage["input_tokens"] + usage["cache_read_input_tokens"] == counted["input_tokens"]
            served.check()
            served.session.end()
            status, error = await served.post(COUNT, {**ask, "messages": [USER]})
            assert (status, error["error"]["type"]) == (404, "not_found_error")

    run(main)


def test_system_messages_may_come_later(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes") as served:
            messages = [USER, {"role": "system", "content": [text("Be brief.")]}]
            _, first = await served.post(PATH, body(*messages, system="Add."))
            messages += [{"role": "assistant", "content": first["content"]}, {"role": "system", "content": "Be kind."}]
            await served.post(PATH, body(*messages, system="Add."))
            assert len(served.check().threads) == 1
            prompt = served.engine.engine.encoder.decode(served.engine.seen[1][0])
            assert all(words in prompt for words in ("Add.", "Be brief.", "Be kind."))

    run(main)


def test_an_error_of_a_tool_is_named_to_the_model(serve: Any) -> None:
    async def main() -> None:
        async with serve(calculator) as served:
            _, first = await served.post(PATH, body(USER, tools=[ADD]))
            _, one, other = first["content"]
            results = [result_of(one, "no such file", is_error=True), result_of(other, "Error: 7", is_error=True)]
            messages = [USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": results}]
            await served.post(PATH, body(*messages, tools=[ADD]))
            prompt = served.engine.engine.encoder.decode(served.engine.seen[1][0])
            assert "\nError: no such file\n" in prompt and "\nError: 7\n" in prompt
            served.check()

    run(main)


def test_numbers_may_come_back_as_javascript_writes_them(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: call(a=2.0, b=[1e21, {"c": 0.5}])) as served:
            _, first = await served.post(PATH, body(USER, tools=[ADD]))
            use = first["content"][0]
            echo = {**use, "input": {"b": [10**21, {"c": 0.5}], "a": 2}}
            messages = [
                USER,
                {"role": "assistant", "content": [echo]},
                {"role": "user", "content": [result_of(use, "3")]},
            ]
            await served.post(PATH, body(*messages, tools=[ADD]))
            assert len(served.check().threads) == 1

    run(main)


def test_what_is_not_for_the_model_is_left_out(serve: Any) -> None:
    """Blocks that change with each request, thoughts that come back, marks of caches, tools that may not be called."""

    async def main() -> None:
        async with serve(lambda prompt: "<think>hm</think>\n\nyes") as served:
            messages: list[Any] = [USER]
            for number in range(2):
                fields = {
                    "system": [text(f"x-anthropic-billing-header: cch={number};"), text("Be brief.")],
                    "thinking": {"type": "adaptive"},
                    "output_config": {"effort": "low"},
                    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                    "metadata": {"user_id": "u"},
                    "service_tier": "auto",
                    "temperature": 0.5,
                    "top_k": 3,
                    "tools": [ADD],
                    "tool_choice": {"type": "none"},
                }
                status, reply = await served.post(PATH, body(*messages, **fields))
                assert status == 200, reply
                hidden = {"type": "redacted_thinking", "data": "x"}
                messages += [{"role": "assistant", "content": [hidden, *reply["content"]]}, USER]
            assert len(served.check().threads) == 1
            prompt = served.engine.engine.encoder.decode(served.engine.seen[1][0])
            assert "billing" not in prompt and '"add"' not in prompt and prompt.count("<think>") == 1
            _, reply = await served.post(PATH, body(USER, thinking={"type": "disabled"}))
            assert [block["type"] for block in reply["content"]] == ["text"]

    run(main)


def of_user(*blocks: Any) -> dict[str, Any]:
    return body({"role": "user", "content": list(blocks)})


RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "3"}


@pytest.mark.parametrize(
    ("request_body", "words"),
    [
        ({"model": "m", "messages": [USER]}, "max_tokens is required"),
        (body(USER, max_tokens=0), "max_tokens must be an integer of at least 1, got 0"),
        (body(), "messages must not be empty"),
        ({"model": "m", "max_tokens": 5}, "messages must be a list, got None"),
        (body(USER, {"role": "assistant", "content": "The"}), "messages must end with a user's message"),
        (body({"role": "tool", "content": "3"}), "messages[0].role: 'tool' is not one of user, assistant, system"),
        (body({"role": ["user"], "content": "3"}), "messages[0].role: ['user'] is not one of"),
        (body({"role": "user", "content": 5}), "messages[0].content must be a list, got 5"),
        (of_user("Hi"), "messages[0].content[0] must be an object"),
        (of_user({"type": "image", "source": {}}), "messages[0].content[0]: blocks of type 'image' are not supported"),
        (of_user(text("?"), {"type": "document"}), "messages[0].content[1]: blocks of type 'document' are not"),
        (of_user({"type": "text"}), "messages[0].content[0].text must be a text"),
        (of_user(text("?"), RESULT), "blocks of type 'tool_result' come first"),
        (
            of_user({**RESULT, "content": [{"type": "image"}]}),
            "messages[0].content[0].content[0]: parts of type 'image'",
        ),
        (of_user({**RESULT, "is_error": "no"}), "messages[0].content[0].is_error must be true or false"),
        (of_user({"type": "tool_result"}), "messages[0].content[0].tool_use_id must be a text"),
        (body({"role": "assistant", "content": [{"type": "server_tool_use"}]}, USER), "'server_tool_use'"),
        (
            body({"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "add"}]}, USER),
            ".input must be",
        ),
        (body(USER, system=5), "system must be a list, got 5"),
        (body(USER, system=[{"type": "image"}]), "system[0]: parts of type 'image'"),
        (body(USER, tools=[{"type": "web_search_20250305", "name": "web_search"}]), "tools[0].type must be custom"),
        (body(USER, tools=[{"name": "add", "input_schema": 5}]), "tools[0].input_schema must be an object"),
        (body(USER, tools=[ADD], tool_choice={"type": "any"}), "tool_choice.type must be auto or none, got 'any'"),
        (body(USER, tool_choice="auto"), "tool_choice must be an object"),
        (body(USER, stop_sequences=[""]), "stop_sequences[0] must not be empty"),
        (body(USER, stream="yes"), "stream must be true or false"),
        (body(USER, temperature="hot"), "temperature must be a number"),
        (body(USER, thinking="much"), "thinking must be an object"),
        (body(USER, output_config={"format": {"type": "json_schema"}}), "output_config.format is not supported"),
        (
            body(USER, context_management={"edits": [{"type": "compact_20260112"}]}),
            "'compact_20260112' is not supported",
        ),
        (body(USER, mcp_servers=[{"url": "x"}]), "mcp_servers is not supported: tools are the agent's own"),
        (body(USER, compaction={"type": "x"}), "compaction is not supported: the agent shortens its conversation"),
        (body(USER, thread={"type": "create"}), "thread is not supported: send the conversation in full"),
        (body(USER, n=2), "n is not supported: every reply is a turn of the rollout"),
        (body(USER, no_such=1), "unknown parameter: no_such"),
    ],
)
def test_bad_input_is_refused_in_the_dialects_form(serve: Any, request_body: Any, words: str) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes") as served:
            status, error = await served.post(PATH, request_body)
            assert (status, error["type"], error["error"]["type"]) == (400, "error", "invalid_request_error"), error
            assert words in error["error"]["message"]
            assert not served.engine.seen and rollout_of(served.session).segments == ()

    run(main)


def test_errors_have_the_kinds_of_the_dialect(serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_BODY", 1000)

    async def main() -> None:
        async with serve(lambda prompt: Reply(text="", fails="down")) as served:
            found = [
                await served.post(PATH, body({"role": "user", "content": "x" * 2000})),
                await served.post(PATH, body(USER)),
            ]
            served.session.end()
            found.append(await served.post(PATH, body(USER)))
            monkeypatch.setattr(served.session, "reply", None)
            monkeypatch.setattr(served.session, "count", None)
            found += [await served.post(path, body(USER)) for path in (PATH, COUNT)]
            kinds = [(status, error["error"]["type"]) for status, error in found]
            assert kinds == [
                *((413, "request_too_large"), (503, "api_error"), (404, "not_found_error")),
                *((500, "api_error"), (500, "api_error")),
            ]
            _, error = await served.post("/v1/completions", {"model": "m", "prompt": "One"})
            assert error["error"]["type"] == "server_error" and "TypeError" in error["error"]["message"]

    run(main)


def test_a_reached_limit_is_the_error_at_which_agents_compact(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes", limits=SessionLimits(max_turns=1, max_tokens=100)) as served:
            served.engine.info = served.engine.engine.info = served.engine.info.__class__(
                name="small", capabilities=served.engine.info.capabilities, vocab_size=300, max_tokens=50
            )
            long = {"role": "user", "content": "x" * 100}
            _, counted = await served.post(COUNT, {"model": "m", "messages": [long]})
            for stream in (False, True):
                status, error = await served.post(PATH, body(long, stream=stream))
                assert (status, error["error"]["type"]) == (400, "invalid_request_error")
                n = counted["input_tokens"]
                assert error["error"]["message"].startswith(f"prompt is too long: {n} tokens > 49 maximum")
            assert (await served.post(PATH, body({"role": "user", "content": "?"})))[0] == 200
            status, error = await served.post(PATH, body({"role": "user", "content": "?"}))
            assert "tokens > 0 maximum (the limit of 1 turns is reached)" in error["error"]["message"]
            served.check()

    run(main)
