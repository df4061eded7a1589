"""What judges were asked and answered: noted where it is collected, and enough to answer again without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from ramet import ChatReply, InfraError, OpenAIClient, OpenAIOptions, RequestRefused, user_prompt
from ramet.helpers.openai.exchanges import ChatExchange, answered_from, collected
from ramet.testing import OpenAIServer, RawReply

pytest.importorskip("aiohttp", reason="needs ramet[openai]")

NOWHERE = "http://127.0.0.1:9/v1"


async def ask(url: str, *texts: str, **options: Any) -> list[ChatReply | InfraError]:
    client = OpenAIClient(OpenAIOptions(urls=[url], model="tiny", retries=0), "judge.server")
    try:
        asked = (client.chat(user_prompt(text), temperature=0, **options) for text in texts)
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [one for one in found if isinstance(one, ChatReply | InfraError)]
    finally:
        await client.aclose()


def noted(answer: Callable[[dict[str, Any]], Any], *texts: str, **options: Any) -> list[ChatExchange]:
    with OpenAIServer(answer) as server, collected() as found:
        asyncio.run(ask(server.url, *texts, **options))
    return found


def again(exchanges: list[ChatExchange], *texts: str) -> list[ChatReply | InfraError]:
    """From JSON, where no server is."""
    stored = [ChatExchange.from_body(json.loads(json.dumps(asdict(one)))) for one in exchanges]
    with answered_from(stored):
        return asyncio.run(ask(NOWHERE, *texts))


def test_questions_with_their_prompt_and_raw_answers_are_noted_in_a_fixed_order() -> None:
    found = noted(lambda body: f"so: {body['messages'][0]['content']}", "b", "a", prompt="equivalence_v1")
    assert [(one.messages[0].content, one.reply) for one in found] == [("a", "so: a"), ("b", "so: b")]
    first = found[0]
    assert (first.client, first.prompt, first.model) == ("judge.server", "equivalence_v1", "tiny")
    assert (first.parameters, first.accepted, first.error) == ({"temperature": 0}, True, None)


def test_nothing_is_noted_outside() -> None:
    with OpenAIServer(lambda body: "yes") as server:
        with collected() as found:
            pass
        asyncio.run(ask(server.url, "a"))
    assert found == []


def test_stored_answers_are_given_again_without_a_server() -> None:
    found = noted(lambda body: f"so: {body['messages'][0]['content']}", "a", "b", check=lambda text: "a" in text)
    replies = again(found, "b", "a", "c")
    assert [one.text for one in replies if isinstance(one, ChatReply)] == ["so: b", "so: a"]
    assert [one.accepted for one in replies if isinstance(one, ChatReply)] == [False, True]
    assert str(replies[2]) == "judge.server: this question is not among the stored ones"


@pytest.mark.parametrize(("status", "kind"), [(500, InfraError), (400, RequestRefused)])
def test_a_failure_is_noted_and_met_again(status: int, kind: type[InfraError]) -> None:
    (found,) = noted(lambda body: RawReply(status=status, body="too long"), "a")
    assert found.reply is None and found.error is not None and str(status) in found.error
    (error,) = again([found], "a")
    assert type(error) is kind and str(error) == found.error
