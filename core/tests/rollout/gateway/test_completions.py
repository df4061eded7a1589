"""The dialect of `/v1/completions`: bodies written by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="needs ramet[openai]")

from core.tests.rollout.gateway.conftest import rollout_of, run

PATH = "/v1/completions"


def body(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": prompt, "max_tokens": 100, **fields}


def test_a_text_is_continued_without_a_chat_template(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: " <think>2</think> two") as served:
            status, reply = await served.post(PATH, body("One plus one is"))
            assert (status, reply["object"], reply["model"]) == (200, "text_completion", "m")
            [choice] = reply["choices"]
            assert choice == {"index": 0, "text": " <think>2</think> two", "finish_reason": "stop", "logprobs": None}
            prompt, sampled = served.engine.seen[0]
            assert prompt == list(served.engine.engine.encoder.untrusted("One plus one is"))
            assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (len(prompt), len(sampled))
            assert (await served.post(PATH, body(["One plus one is"])))[0] == 200
            served.check()

    run(main)


def test_special_tokens_in_a_text_are_text(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "two") as served:
            await served.post(PATH, body("<|im_start|>user\nHi<|im_end|>"))
            special = set(served.engine.engine.encoder.tokenizer.added_tokens_decoder)
            assert special.isdisjoint(served.engine.seen[0][0])
            served.check()

    run(main)


def test_the_ids_of_a_text_that_was_sampled_continue(serve: Any) -> None:
    """An agent that keeps its conversation as one text: stop strings and results are added by the client."""

    async def main() -> None:
        async with serve(lambda prompt: " look <|im_end|> up\nObservation: none") as served:
            text = "Question: 1?\nThought:"
            for result in ("one", "two"):
                _, reply = await served.post(PATH, body(text, stop=["\nObservation:"]))
                assert reply["choices"][0]["text"] == " look <|im_end|> up"
                text += f"{reply['choices'][0]['text']}\nObservation: {result}\nThought:"
            await served.post(PATH, body(text, stop="\nObservation:"))
            seen = served.engine.seen
            for (prompt, sampled), (after, _) in pairwise(seen):
                assert after[: len(prompt) + len(sampled)] == prompt + sampled
            assert len(served.check().threads) == 1

    run(main)


def test_an_end_that_was_sampled_is_not_in_the_text(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: " two") as served:
            for text in ("One plus one is", "One plus one is two and one plus two is"):
                await served.post(PATH, body(text))
            (prompt, sampled), (after, _) = served.engine.seen
            assert after[: len(prompt) + len(sampled) - 1] == prompt + sampled[:-1]
            assert len(served.check().threads) == 2

    run(main)


def test_a_cut_reply_is_16_tokens_unless_asked_and_can_be_continued(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: " many words that are more than one needs") as served:
            _, reply = await served.post(PATH, {"model": "m", "prompt": "Say"})
            [choice] = reply["choices"]
            assert choice["finish_reason"] == "length" and reply["usage"]["completion_tokens"] == 16
            await served.post(PATH, body(f"Say{choice['text']}"))
            assert len(served.check().threads) == 1

    run(main)


def test_a_stream_has_the_text_its_end_and_the_usage(serve: Any) -> None:
    async def main() -> None:
        async with serve(lambda prompt: " two") as served:
            url, given = f"{served.url}{PATH}", body("1 + 1 is", stream=True, stream_options={"include_usage": True})
            headers = {"Authorization": f"Bearer {served.key}"}
            async with served.http.post(url, json=given, headers=headers) as response:
                *chunks, end = (await response.text()).strip().split("\n\n")
            assert end == "data: [DONE]"
            assert '"text": " two"' in chunks[0] and '"finish_reason": "stop"' in chunks[1]
            assert '"choices": []' in chunks[2] and '"completion_tokens": 5' in chunks[2]
            served.check()

    run(main)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"prompt": None}, "prompt", "must be one text that is not empty, got None"),
        ({"prompt": ""}, "prompt", "must be one text"),
        ({"prompt": [1, 2]}, "prompt", "must be one text"),
        ({"prompt": ["a", "b"]}, "prompt", "must be one text"),
        ({"n": 2}, "n", "must be 1"),
        ({"best_of": 3}, "best_of", "must be 1"),
        ({"echo": True}, "echo", "the client has the prompt"),
        ({"suffix": "x"}, "suffix", "not supported"),
        ({"logprobs": 5}, "logprobs", "not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"messages": []}, "messages", "unknown parameter"),
        ({"stream_options": "usage"}, "stream_options", "must be an object"),
        ({"stop": 5}, "stop", "must be a list"),
        ({"max_tokens": True}, "max_tokens", "at least 1"),
    ],
)
def test_bad_fields_are_refused_by_name(serve: Any, fields: Any, param: str, words: str) -> None:
    async def main() -> None:
        async with serve(lambda prompt: "yes") as served:
            status, error = await served.post(PATH, {"model": "m", "prompt": "One", **fields})
            assert (status, error["error"]["type"]) == (400, "invalid_request_error")
            assert error["error"]["param"] == param and words in error["error"]["message"]
            assert not served.engine.seen and rollout_of(served.session).segments == ()

    run(main)
