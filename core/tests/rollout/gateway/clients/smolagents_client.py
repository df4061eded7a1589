"""Scenarios of `smolagents`: an agent that calls tools, one that writes code, and one that asks another one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from common import QUESTION, main, plus
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return plus(a, b)


def model_of(url: str, key: str, **client: Any) -> Any:
    """By itself it asks for `tool_choice="required"`, which the gateway refuses."""
    return OpenAIServerModel("policy", api_base=url, api_key=key, tool_choice="auto", client_kwargs=client)


def agent_of(url: str, key: str, **client: Any) -> ToolCallingAgent:
    return ToolCallingAgent(tools=[add], model=model_of(url, key, **client), verbosity_level=0, max_steps=5)


def tools(url: str, key: str, question: str = QUESTION) -> Any:
    return agent_of(url, key).run(question)


def tools_stream(url: str, key: str) -> Any:
    agent = ToolCallingAgent(tools=[add], model=model_of(url, key), verbosity_level=0, max_steps=5, stream_outputs=True)
    return agent.run(QUESTION)


def code(url: str, key: str) -> Any:
    agent = CodeAgent(tools=[add], model=model_of(url, key), verbosity_level=0, max_steps=5)
    return agent.run(QUESTION)


def parallel(url: str, key: str) -> Any:
    """Two agents at the same time, in threads."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda number: tools(url, key, f"{number}: {QUESTION}"), (1, 2)))


def retries(url: str, key: str) -> Any:
    """The engine fails once, and is once slower than the client waits. Both requests are repeated by the client."""
    agent = agent_of(url, key, max_retries=3, timeout=1.0)
    return [agent.run(question) for question in ("First?", "Slow?")]


def compaction(url: str, key: str) -> Any:
    """The agent's memory is emptied, and its answer is all that it starts with."""
    agent = agent_of(url, key)
    summary = agent.run(QUESTION)
    agent.memory.reset()
    return agent.run(f"So far: {summary}. {QUESTION}", reset=False)


def edited(url: str, key: str) -> Any:
    """What a call returned is changed in the agent's memory."""
    agent = agent_of(url, key)
    agent.run(QUESTION)
    agent.memory.steps[1].observations = "4\n7"
    return agent.run("Are you sure?", reset=False)


if __name__ == "__main__":
    main(
        "smolagents",
        tools,
        tools_stream,
        code,
        parallel,
        retries,
        compaction,
        edited,
        agent=tools,
        killed=tools_stream,
    )
