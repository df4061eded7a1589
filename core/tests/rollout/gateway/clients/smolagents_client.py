"""Scenarios of `smolagents`: an agent that calls tools, one that writes code, and one that asks another one."""

from __future__ import annotations

from typing import Any

from common import QUESTION, main
from smolagents import CodeAgent, OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def model_of(url: str, key: str) -> Any:
    """By itself it asks for `tool_choice="required"`, which the gateway refuses."""
    return OpenAIServerModel("policy", api_base=url, api_key=key, tool_choice="auto")


def tools(url: str, key: str) -> Any:
    agent = ToolCallingAgent(tools=[add], model=model_of(url, key), verbosity_level=0, max_steps=5)
    return agent.run(QUESTION)


def tools_stream(url: str, key: str) -> Any:
    agent = ToolCallingAgent(tools=[add], model=model_of(url, key), verbosity_level=0, max_steps=5, stream_outputs=True)
    return agent.run(QUESTION)


def code(url: str, key: str) -> Any:
    agent = CodeAgent(tools=[add], model=model_of(url, key), verbosity_level=0, max_steps=5)
    return agent.run(QUESTION)


if __name__ == "__main__":
    main("smolagents", tools, tools_stream, code)
