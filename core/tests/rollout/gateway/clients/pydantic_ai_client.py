"""Scenarios of `pydantic-ai`, with its models of both dialects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable
from typing import Any

from common import QUESTION, main
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def agent_of(model: Any) -> Agent:
    agent = Agent(model, instructions="You calculate.")

    @agent.tool_plain
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return agent


async def streamed(agent: Agent) -> str:
    """Each reply is read as a stream, and the run ends as one without streams does."""
    kinds = set()

    async def read(context: Any, events: AsyncIterable[Any]) -> None:
        kinds.update([event.event_kind async for event in events])

    result = await agent.run(QUESTION, event_stream_handler=read)
    assert {"part_start", "part_end"} <= kinds
    return result.output


def chat(url: str, key: str) -> Any:
    return (
        agent_of(OpenAIChatModel("policy", provider=OpenAIProvider(base_url=url, api_key=key)))
        .run_sync(QUESTION)
        .output
    )


def chat_stream(url: str, key: str) -> Any:
    model = OpenAIChatModel("policy", provider=OpenAIProvider(base_url=url, api_key=key))
    return asyncio.run(streamed(agent_of(model)))


def responses(url: str, key: str) -> Any:
    """Two runs: the second one continues the history of the first."""
    agent = agent_of(OpenAIResponsesModel("policy", provider=OpenAIProvider(base_url=url, api_key=key)))
    first = agent.run_sync(QUESTION)
    second = agent.run_sync("Are you sure?", message_history=first.all_messages())
    return [first.output, second.output]


def responses_stream(url: str, key: str) -> Any:
    model = OpenAIResponsesModel("policy", provider=OpenAIProvider(base_url=url, api_key=key))
    return asyncio.run(streamed(agent_of(model)))


if __name__ == "__main__":
    main("pydantic-ai-slim", chat, chat_stream, responses, responses_stream)
