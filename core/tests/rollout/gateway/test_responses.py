"""The dialect of `POST /v1/responses`, by bodies written by hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs ramet[openai]")

from ramet.rollout.gateway import server
from ramet.rollout.gateway.session import SessionLimits
from ramet.testing.doubles import Reply

PATH = "/v1/responses"
ADD = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": True,
}
USER = {"role": "user", "content": "What is 1 + 2?"}


def call(name: str = "add", **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def calculator(prompt: str) -> str:
    """Two calls with a text, then the results."""
    results = prompt.rpartition("assistant")[0].count("<tool_response>")
    if results == 0:
        return f"I add.\n{call(a=1, b=2)}\n{call(a=3, b=4)}"
    return f"<think>{results} results</think>\n\nDone with {results}."


def output_of(item: dict[str, Any], text: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": item["call_id"], "output": text}


def echo(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a reply as clients without ids send them back."""
    kept = ("type", "role", "content", "call_id", "name", "arguments")
    return [{name: item[name] for name in kept if name in item} for item in items]


def run(main: Any) -> None:
    asyncio.run(main())


def test_a_reply_has_its_text_its_calls_and_its_usage(serve: Any) -> None:
    async def main() -> None:
        async with serve(calculator) as served:
            status, body = await served.post(PATH, {"model": "m", "input": [USER], "tools": [ADD]})
            assert status == 200, body
            assert (body["object"], body["status"], body["model"]) == ("response", "completed", "m")
            text, first, second = body["output"]
            assert (text["type"], text["content"][0]["text"]) == ("message", "I add.")
            assert (first["type"], first["name"], json.loads(first["arguments"])) == (
                "function_call",
                "add",
                {"a": 1, "b": 2},
            )
            assert json.loads(second["arguments"]) == {"a": 3, "b": 4}
            assert len({first["id"], second["id"], first["call_id"], second["call_id"], text["id"]}) == 5
            prompt, sampled = served.engine.seen[0]
            assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (len(prompt), len(sampled))
            served.check()

    run(main)


@pytest.mark.parametrize(
    ("order", "stored", "family"),
    [
        ("calls first", None, "qwen2.5"),
        ("calls first", False, "qwen2.5"),
        ("calls first", None, "qwen3"),
        ("each with its result", None, "qwen2.5"),
        ("each with its result", False, "qwen2.5"),
        ("by id", None, "qwen2.5"),
        ("previous_response_id", None, "qwen2.5"),
        ("previous_response_id", None, "qwen3"),
    ],
)
def test_the_items_of_a_reply_are_one_turn_however_they_come_back(
    serve: Any, order: str, stored: Any, family: str
) -> None:
    async def main() -> None:
        async with serve(calculator, family=family) as served:
            ask = {"model": "m", "instructions": "Be brief.", "tools": [ADD], "store": stored}
            _, first = await served.post(PATH, {**ask, "input": "What is 1 + 2?"})
            text, one, other = first["output"]
            results = [output_of(one, "3"), output_of(other, [{"type": "input_text", "text": "7"}])]
            inputs = {
                "calls first": [USER, *echo([text, one, other]), *results],
                "each with its result": [USER, *echo([text, one]), results[0], *echo([other]), results[1]],
                "by id": [USER, *({"type": "item_reference", "id": i["id"]} for i in first["output"]), *results],
                "previous_response_id": results,
            }
            more = {"previous_response_id": first["id"]} if order == "previous_response_id" else {}
            _, second = await served.post(PATH, {**ask, **more, "input": inputs[order]})
            thoughts, answer = second["output"]
            assert thoughts["content"][0]["text"] == "2 results"
            assert answer["content"][0]["text"] == "Done with 2."
            rest = [output_of(one, "3"), output_of(other, "7"), thoughts, answer]
            sure = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Sure?"}]}
            last = [USER, *echo(first["output"]), *rest, sure]
            assert (await served.post(PATH, {**ask, "input": last}))[0] == 200
            rollout = served.check()
            assert len(rollout.threads) == 1 and len(served.engine.seen) == 3

    run(main)


def test_two_replies_without_anything_between_stay_two_turns(serve: Any) -> None:
    texts = iter(["Let me think.", call(a=1, b=2), "3"])

    async def main() -> None:
        async with serve(lambda prompt: next(texts)) as served:
            ask = {"model": "m", "tools": [ADD]}
            _, first = await served.post(PATH, {**ask, "input": [USER]})
            items = [USER, *first["output"]]
            _, second = await served.post(PATH, {**ask, "input": items})
            items = [*items, *second["output"], output_of(second["output"][0], "3")]
            await served.post(PATH, {**ask, "input": items})
            prompt, sampled = served.engine.seen[1]
            assert served.engine.seen[2][0][: len(prompt) + len(sampled)] == prompt + sampled
            served.check()

    run(main)


def test_a_reply_without_text_is_a_message_all_the_same(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "" if "And?" not in prompt else "yes") as served:
            _, first = await served.post(PATH, {"input": [USER]})
            assert [item["type"] for item in first["output"]] == ["message"]
            more = {"role": "user", "content": "And?"}
            await served.post(PATH, {"input": [USER, *echo(first["output"]), more]})
            assert len(served.check().threads) == 1

    run(main)


def test_instructions_are_of_one_request(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes" if "Be brief." in prompt else "no") as served:
            _, first = await served.post(PATH, {"model": "m", "input": "One?", "instructions": "Be brief."})
            _, second = await served.post(
                PATH, {"model": "m", "input": "Two?", "previous_response_id": first["id"], "instructions": None}
            )
            texts = [body["output"][0]["content"][0]["text"] for body in (first, second)]
            assert texts == ["yes", "no"]
            assert second["previous_response_id"] == first["id"]
            assert len(served.check().threads) == 2

    run(main)


def test_a_stream_has_every_event_in_order(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: f"<think>hm</think>\n\nI add.\n{call(a=1, b=2)}") as served:
            found = await served.events(PATH, {"model": "m", "input": [USER], "tools": [ADD], "stream": True})
            assert all(name == data["type"] for name, data in found)
            assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
            part = ["content_part.added", "{}.delta", "{}.done", "content_part.done"]
            names = [
                *("created", "in_progress"),
                *("output_item.added", *(name.format("reasoning_text") for name in part), "output_item.done"),
                *("output_item.added", *(name.format("output_text") for name in part), "output_item.done"),
                *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done"),
                *("output_item.done", "completed"),
            ]
            assert [name for name, _ in found] == [f"response.{name}" for name in names]
            added = [data["item"] for name, data in found if name.endswith("item.added")]
            assert [item["status"] for item in added] == ["in_progress"] * 3
            assert [item.get("content") for item in added] == [[], [], None] and added[2]["arguments"] == ""
            done = found[-1][1]["response"]
            assert [data["item"] for name, data in found if name.endswith("item.done")] == done["output"]
            assert found[0][1]["response"]["id"] == done["id"]
            assert (await served.get(f"{PATH}/{done['id']}"))[1] == done
            served.check()

    run(main)


def test_a_cut_reply_is_incomplete(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "a long answer") as served:
            ask = {"model": "m", "input": "Say.", "max_output_tokens": 6}
            _, body = await served.post(PATH, ask)
            assert (body["status"], body["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
            assert body["output"][0]["status"] == "incomplete"
            assert (await served.events(PATH, {**ask, "stream": True}))[-1][0] == "response.incomplete"
            served.check()

    run(main)


def test_replies_are_of_their_session(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes") as served, serve(lambda prompt: "yes") as other:
            _, mine = await served.post(PATH, {"model": "m", "input": "One?"})
            assert (await served.get(f"{PATH}/{mine['id']}")) == (200, mine)
            assert (await served.get(f"/s/{served.key}{PATH}/{mine['id']}", Authorization="")) == (200, mine)
            again = {"model": "m", "input": "Two?", "previous_response_id": mine["id"]}
            item = {"type": "item_reference", "id": mine["output"][0]["id"]}
            for status, body in (
                await other.get(f"{PATH}/{mine['id']}"),
                await other.post(PATH, again),
                await other.post(PATH, {"model": "m", "input": [item]}),
            ):
                assert status == 404 and body["error"]["param"] is not None, body
            assert (await served.get(f"{PATH}/{mine['id']}", Authorization="Bearer no"))[0] == 401
            assert (await served.get(f"{PATH}/{mine['id']}?stream=true"))[0] == 400
            _, unkept = await served.post(PATH, {"model": "m", "input": "One?", "store": False})
            assert (await served.get(f"{PATH}/{unkept['id']}"))[0] == 404
            assert not other.engine.seen

    run(main)


def test_what_clients_repeat_is_kept_once(serve: Any) -> None:
    async def main() -> None:
        async with serve(calculator) as served:
            ask = {"instructions": "Be brief.", "tools": [ADD]}
            _, first = await served.post(PATH, {**ask, "input": [USER]})
            results = [output_of(item, "3") for item in first["output"][1:]]
            _, second = await served.post(PATH, {**ask, "input": [USER, *first["output"], *results]})
            one, two = (served.session.kept.response(body["id"], None) for body in (first, second))
            assert all(known is item for known, item in zip(one.items, two.items))  # noqa: B905
            assert one.body["tools"] is two.body["tools"] and len(two.items) == 8

    run(main)


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_is_kept_although_its_client_has_gone(
    serve: Any, stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.05)

    async def main() -> None:
        async with serve(lambda prompt: Reply(text="yes", rest_s=0.3)) as served:
            ask = {"model": "m", "input": "One?", "stream": stream}
            with pytest.raises(TimeoutError):
                async with (
                    asyncio.timeout(0.15),
                    served.http.post(served.url + PATH, json=ask, headers=served.headers()) as got,
                ):
                    await got.read()
            await asyncio.sleep(0.4)
            again = {"x-stainless-retry-count": "1"}
            if stream:
                body = (await served.events(PATH, ask, **again))[-1][1]["response"]
            else:
                _, body = await served.post(PATH, ask, **again)
            assert body["output"][0]["content"][0]["text"] == "yes" and len(served.engine.seen) == 1
            assert (await served.get(f"{PATH}/{body['id']}"))[1] == body
            served.check()

    run(main)
    assert not caplog.records


def test_an_engine_that_fails_is_a_503_and_in_a_stream_that_has_begun_an_error(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.05)

    async def main() -> None:
        async with serve(lambda prompt: Reply(text="", first_s=0.1, fails="engine is down")) as served:
            status, body = await served.post(PATH, {"model": "m", "input": "One?"})
            assert (status, body["error"]["type"]) == (503, "server_error")
            [(name, data)] = await served.events(PATH, {"model": "m", "input": "One?", "stream": True})
            assert name == "error" and "engine is down" in data["error"]["message"]
            assert not served.engine.seen
            served.check()

    run(main)


def test_harmless_fields_are_accepted(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes") as served:
            fields = {
                "include": ["reasoning.encrypted_content"],
                "reasoning": {"effort": "low", "summary": "auto"},
                "text": {"format": {"type": "text"}, "verbosity": "low"},
                "parallel_tool_calls": False,
                "metadata": {"a": "b"},
                "truncation": "auto",
                "prompt_cache_key": "k",
                "temperature": 0.1,
                "tool_choice": "none",
                "tools": [ADD],
                "top_logprobs": 0,
                "background": False,
                "conversation": None,
            }
            status, body = await served.post(PATH, {"model": "m", "input": [USER], **fields})
            assert status == 200 and body["metadata"] == {"a": "b"} and body["parallel_tool_calls"] is False
            assert "add" not in served.engine.engine.encoder.decode(served.engine.seen[0][0]).partition("1 + 2")[0]

    run(main)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "must be function, got 'web_search'"),
        ({"tools": ["add"]}, "tools[0]", "must be an object"),
        ({"tool_choice": "required"}, "tool_choice", "must be auto or none"),
        ({"tool_choice": {"type": "function", "name": "add"}}, "tool_choice", "must be auto or none"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", "text.format.type must be text"),
        ({"top_logprobs": 3}, "top_logprobs", "not supported"),
        ({"include": ["message.output_text.logprobs"]}, "include", "not supported"),
        ({"background": True}, "background", "not supported"),
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"prompt": {"id": "p"}}, "prompt", "instructions"),
        ({"surprise": 1}, "surprise", "unknown parameter"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"temperature": "hot"}, "temperature", "must be a number"),
        ({"stream": "false"}, "stream", "must be true or false"),
        ({"store": 0}, "store", "must be true or false"),
        ({"metadata": [1]}, "metadata", "must be an object"),
        ({"instructions": ["Be brief."]}, "instructions", "must be a text"),
        ({"input": 5}, "input", "must be a list"),
        ({"input": []}, "input", "at least one message"),
        ({"input": None}, "input", "at least one message"),
        ({"input": ["Hi"]}, "input[0]", "must be an object"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type", "'web_search_call' is not supported"),
        ({"input": [{"type": ["message"]}]}, "input[0].type", "is not supported"),
        ({"input": [{"role": "critic", "content": "x"}]}, "input[0].role", "not one of system, developer"),
        ({"input": [{"role": [], "content": "x"}]}, "input[0].role", "not one of system, developer"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]", "'input_image'"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]", "'input_file'"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text", "a text"),
        ({"input": [{"type": "function_call", "name": "add", "arguments": "{}"}]}, "input[0].call_id", "a text"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": 3}]}, "input[0].output", "a list"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id", "no reply of this session"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "no response 'resp_1'"),
        ({"previous_response_id": ["resp_1"]}, "previous_response_id", "no response"),
    ],
)
def test_bad_fields_are_refused_by_name(serve: Any, fields: Any, param: str, words: str) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes") as served:
            status, body = await served.post(PATH, {"model": "m", "input": [USER], **fields})
            assert status in (400, 404) and body["error"]["type"] == "invalid_request_error", body
            assert body["error"]["param"] == param and words in body["error"]["message"], body
            assert not served.engine.engine.requests

    run(main)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ('{"input": "a\\ud800b"}', "half of a surrogate pair"),
        ('{"input": "x", "temperature": NaN}', "NaN is not a number of JSON"),
        ('{"input": "x", "temperature": 1e999}', "temperature must be a number, got inf"),
        ('{"input": ' + "[" * 70 + "]" * 70 + "}", "nested more than 64 levels deep"),
        ('{"input": ' + "[" * 100_000 + "]" * 100_000 + "}", "the body is not JSON"),
        (b'{"input": "a\xed\xa0\x80b"}', "the body is not JSON: 'utf-8' codec"),
    ],
)
def test_bodies_that_only_python_reads_are_refused(serve: Any, raw: Any, words: str) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes") as served:
            headers = {"Authorization": f"Bearer {served.key}"}
            async with served.http.post(f"{served.url}{PATH}", data=raw, headers=headers) as response:
                assert response.status == 400 and words in (await response.json())["error"]["message"]

    run(main)


def test_arguments_from_elsewhere_need_not_be_json(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes") as served:
            for arguments in ("not JSON", "[" * 5000 + "]" * 5000, '{"a": "\\ud800"}'):
                asked = {"type": "function_call", "call_id": "c", "name": "add", "arguments": arguments}
                status, body = await served.post(PATH, {"input": [USER, asked, output_of(asked, "3")]})
                assert status == 200, body
            served.check()

    run(main)


def test_a_reached_limit_is_an_error_that_clients_know(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes", limits=SessionLimits(max_turns=1, max_tokens=100)) as served:
            await served.post(PATH, {"model": "m", "input": "One?"})
            for stream in (False, True):
                status, body = await served.post(PATH, {"model": "m", "input": "Two?", "stream": stream})
                assert (status, body["error"]["code"]) == (400, "context_length_exceeded")

    run(main)
