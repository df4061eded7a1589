"""Scenarios of the package `openai-agents`: an agent with two tools that hands over to a second agent."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_default_openai_client,
    set_tracing_disabled,
)
from common import QUESTION, main, plus
from openai import AsyncOpenAI

set_tracing_disabled(True)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return plus(a, b)


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def team(model: Any = None) -> Agent:
    speaker = Agent(name="Speaker", instructions="You speak.", model=model)
    return Agent(
        name="Calculator",
        instructions="You calculate.",
        tools=[add, multiply],
        handoffs=[speaker],
        model=model,
    )


def client_of(url: str, key: str) -> AsyncOpenAI:
    client = AsyncOpenAI(base_url=url, api_key=key)
    set_default_openai_client(client, use_for_tracing=False)
    return client


async def streamed(agent: Agent, question: Any, **options: Any) -> Any:
    """The result of a run, after all of its events."""
    result = Runner.run_streamed(agent, question, **options)
    deltas = ""
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            deltas += event.data.delta
    assert deltas.endswith(result.final_output)
    return result


def responses(url: str, key: str) -> Any:
    client_of(url, key)
    result = asyncio.run(Runner.run(team("policy"), QUESTION))
    return [result.last_agent.name, result.final_output]


def responses_stream(url: str, key: str) -> Any:
    client_of(url, key)
    result = asyncio.run(streamed(team("policy"), QUESTION))
    return [result.last_agent.name, result.final_output]


def chat(url: str, key: str) -> Any:
    model = OpenAIChatCompletionsModel(model="policy", openai_client=client_of(url, key))
    result = asyncio.run(Runner.run(team(model), QUESTION))
    return [result.last_agent.name, result.final_output]


def chat_stream(url: str, key: str) -> Any:
    model = OpenAIChatCompletionsModel(model="policy", openai_client=client_of(url, key))
    result = asyncio.run(streamed(team(model), QUESTION))
    return [result.last_agent.name, result.final_output]


def previous_response(url: str, key: str) -> Any:
    """The agent sends only what is new, with `previous_response_id`."""
    client_of(url, key)
    result = asyncio.run(Runner.run(team("policy"), QUESTION, auto_previous_response_id=True))
    return [result.last_agent.name, result.final_output]


def session(url: str, key: str) -> Any:
    """Two runs that share a memory of the package; then one whose history the package nests for the second agent."""
    client_of(url, key)

    async def runs() -> list[str]:
        memory = SQLiteSession("s")
        first = await Runner.run(team("policy"), QUESTION, session=memory)
        second = await Runner.run(first.last_agent, "Are you sure?", session=memory)
        nested = await Runner.run(team("policy"), QUESTION, run_config=RunConfig(nest_handoff_history=True))
        return [first.final_output, second.final_output, nested.final_output]

    return asyncio.run(runs())


def sub_agents(url: str, key: str) -> Any:
    """Two agents as tools of a third one: they run at the same time."""
    client_of(url, key)
    workers = [
        Agent(name=name, instructions=f"You are {name}.", tools=[add], model="policy") for name in ("Ann", "Bob")
    ]
    tools = [worker.as_tool(tool_name=f"ask_{worker.name.lower()}", tool_description="Ask.") for worker in workers]
    boss = Agent(name="Boss", instructions="You are the boss.", tools=tools, model="policy")
    return asyncio.run(Runner.run(boss, "Ask both for 1 + 2.")).final_output


def calculator(model: Any = "policy") -> Agent:
    return Agent(name="Calculator", instructions="You calculate.", tools=[add], model=model)


def retries(url: str, key: str) -> Any:
    """The engine fails once, and is once slower than the client waits. Both requests are repeated by the client."""
    client = AsyncOpenAI(base_url=url, api_key=key, max_retries=3, timeout=1.0)
    set_default_openai_client(client, use_for_tracing=False)

    async def runs() -> list[str]:
        return [(await Runner.run(calculator(), question)).final_output for question in ("First?", "Slow?")]

    return asyncio.run(runs())


def compaction(url: str, key: str) -> Any:
    """The agent sums up, and a new conversation begins with its summary."""
    client_of(url, key)

    async def runs() -> str:
        first = await Runner.run(calculator(), QUESTION)
        summary = await Runner.run(calculator(), [*first.to_input_list(), {"role": "user", "content": "Sum up."}])
        return (await Runner.run(calculator(), f"So far: {summary.final_output}. {QUESTION}")).final_output

    return asyncio.run(runs())


def edited(url: str, key: str) -> Any:
    """The agent's answer is changed in its history, and the agent asked again."""
    client_of(url, key)

    async def runs() -> str:
        items = (await Runner.run(calculator(), QUESTION)).to_input_list()
        items[-1]["content"][0]["text"] = "It is 10."
        return (await Runner.run(calculator(), [*items, {"role": "user", "content": "Are you sure?"}])).final_output

    return asyncio.run(runs())


def agent(url: str, key: str, question: str) -> str:
    client_of(url, key)
    return asyncio.run(Runner.run(calculator(), question)).final_output


async def run(task: Any, ctx: Any) -> str:
    """The agent as `rollout_step=function`."""
    model = OpenAIChatCompletionsModel(
        model=ctx.model, openai_client=AsyncOpenAI(base_url=ctx.base_url, api_key=ctx.key)
    )
    return str((await Runner.run(calculator(model), task.question)).final_output)


def killed(url: str, key: str) -> None:
    client_of(url, key)
    asyncio.run(streamed(calculator(), QUESTION))


if __name__ == "__main__":
    main(
        "openai-agents",
        responses,
        responses_stream,
        chat,
        chat_stream,
        previous_response,
        session,
        sub_agents,
        retries,
        compaction,
        edited,
        agent=agent,
        killed=killed,
    )
