"""Scenarios of `pydantic-ai`, with its models of both dialects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Any

from common import QUESTION, main, plus
from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def agent_of(model: Any, **options: Any) -> Agent:
    agent = Agent(model, instructions="You calculate.", **options)

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return plus(a, b)

    return agent


async def streamed(agent: Agent) -> str:
    """Each reply is read as a stream, and the run ends as one without streams does."""
    kinds = set()

    async def read(context: Any, events: AsyncIterable[Any]) -> None:
        kinds.update([event.event_kind async for event in events])

    result = await agent.run(QUESTION, event_stream_handler=read)
    assert {"part_start", "part_end"} <= kinds
    return result.output


def chat_model(url: str, key: str) -> Any:
    return OpenAIChatModel("policy", provider=OpenAIProvider(base_url=url, api_key=key))


def chat(url: str, key: str, question: str = QUESTION) -> Any:
    return agent_of(chat_model(url, key)).run_sync(question).output


def chat_stream(url: str, key: str) -> Any:
    return asyncio.run(streamed(agent_of(chat_model(url, key))))


def responses(url: str, key: str) -> Any:
    """Two runs: the second one continues the history of the first."""
    agent = agent_of(OpenAIResponsesModel("policy", provider=OpenAIProvider(base_url=url, api_key=key)))
    first = agent.run_sync(QUESTION)
    second = agent.run_sync("Are you sure?", message_history=first.all_messages())
    return [first.output, second.output]


def responses_stream(url: str, key: str) -> Any:
    model = OpenAIResponsesModel("policy", provider=OpenAIProvider(base_url=url, api_key=key))
    return asyncio.run(streamed(agent_of(model)))


def parallel(url: str, key: str) -> Any:
    """An agent whose tools are two others: calls of one turn run at the same time."""
    model = chat_model(url, key)
    boss = Agent(model, instructions="You are the boss.")

    @boss.tool_plain
    async def ask_ann(input: str) -> str:
        return str((await agent_of(model).run(input)).output)

    @boss.tool_plain
    async def ask_bob(input: str) -> str:
        return str((await agent_of(model).run(input)).output)

    return boss.run_sync("Ask both for 1 + 2.").output


def retries(url: str, key: str) -> Any:
    """The engine fails once, and is once slower than the client waits. Both requests are repeated by the client."""
    client = AsyncOpenAI(base_url=url, api_key=key, max_retries=3, timeout=1.0)
    agent = agent_of(OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=client)))

    async def runs() -> list[str]:
        return [(await agent.run(question)).output for question in ("First?", "Slow?")]

    return asyncio.run(runs())


def compaction(url: str, key: str) -> Any:
    """A processor of the history, as the package has them, leaves only the last request."""
    agent = agent_of(chat_model(url, key))
    forgets = agent_of(chat_model(url, key), capabilities=[ProcessHistory(lambda messages: messages[-1:])])
    first = agent.run_sync(QUESTION)
    summary = agent.run_sync("Sum up.", message_history=first.all_messages())
    question = f"So far: {summary.output}. {QUESTION}"
    return forgets.run_sync(question, message_history=summary.all_messages()).output


def edited(url: str, key: str) -> Any:
    """The policy's answer is changed in the history."""
    agent = agent_of(chat_model(url, key))
    *before, _ = agent.run_sync(QUESTION).all_messages()
    assert isinstance(before[-1], ModelRequest)
    changed = ModelResponse(parts=[TextPart("It is 10.")])
    return agent.run_sync("Are you sure?", message_history=[*before, changed]).output


if __name__ == "__main__":
    main(
        "pydantic-ai-slim",
        chat,
        chat_stream,
        responses,
        responses_stream,
        parallel,
        retries,
        compaction,
        edited,
        agent=chat,
        killed=chat_stream,
    )
