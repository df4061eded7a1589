"""Scenarios of `langgraph` with `langchain-openai`: a ready agent, and a graph by hand."""

from __future__ import annotations

import asyncio
from typing import Any

from common import QUESTION, main, plus
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return plus(a, b)


def graph(url: str, key: str, **options: Any) -> Any:
    model = ChatOpenAI(model="policy", base_url=url, api_key=key, **options).bind_tools([add])
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([add]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile()


def start(question: str = QUESTION) -> Any:
    return {"messages": [SystemMessage("You calculate."), HumanMessage(question)]}


def text_of(message: Any) -> str:
    return str(message.text if isinstance(message.text, str) else message.text())


def chat(url: str, key: str) -> Any:
    return text_of(graph(url, key).invoke(start())["messages"][-1])


def chat_stream(url: str, key: str) -> Any:
    state: Any = None
    for state in graph(url, key, streaming=True, stream_usage=True).stream(start(), stream_mode="values"):  # noqa: B007
        pass
    return text_of(state["messages"][-1])


def responses(url: str, key: str) -> Any:
    return text_of(graph(url, key, use_responses_api=True).invoke(start())["messages"][-1])


def responses_stream(url: str, key: str) -> Any:
    agent = graph(url, key, use_responses_api=True, streaming=True)
    return text_of(agent.invoke(start())["messages"][-1])


def responses_previous(url: str, key: str) -> Any:
    agent = graph(url, key, use_responses_api=True, use_previous_response_id=True)
    return text_of(agent.invoke(start())["messages"][-1])


def parallel(url: str, key: str) -> Any:
    """Four runs of one graph at the same time; two of them say the same."""
    agent = graph(url, key)

    async def count(number: int) -> str:
        messages: list[Any] = [HumanMessage(f"Count to {number}.")]
        for _ in range(2):
            messages = (await agent.ainvoke({"messages": messages}))["messages"]
            text = text_of(messages[-1])
            messages.append(HumanMessage("And one more."))
        return text

    async def everyone() -> list[str]:
        return await asyncio.gather(*(count(number) for number in (1, 2, 3, 3)))

    return asyncio.run(everyone())


def retries(url: str, key: str) -> Any:
    """The engine fails once, and is once slower than the client waits. Both requests are repeated by the client."""
    agent = graph(url, key, max_retries=3, timeout=1.0)
    return [text_of(agent.invoke(start(question))["messages"][-1]) for question in ("First?", "Slow?")]


def compaction(url: str, key: str) -> Any:
    """A node replaces the messages by the policy's summary."""
    agent = graph(url, key)
    done = agent.invoke(start())["messages"]
    summary = text_of(agent.invoke({"messages": [*done, HumanMessage("Sum up.")]})["messages"][-1])
    builder = StateGraph(MessagesState)
    fresh = start(f"So far: {summary}. {QUESTION}")["messages"]
    builder.add_node("compact", lambda _: {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), *fresh]})
    builder.add_node("agent", agent)
    builder.add_edge(START, "compact")
    builder.add_edge("compact", "agent")
    return text_of(builder.compile().invoke({"messages": done})["messages"][-1])


def edited(url: str, key: str) -> Any:
    """The policy's answer is changed in the history."""
    agent = graph(url, key)
    *before, last = agent.invoke(start())["messages"]
    changed = AIMessage(text_of(last).replace("11", "10"))
    return text_of(agent.invoke({"messages": [*before, changed, HumanMessage("Are you sure?")]})["messages"][-1])


def agent(url: str, key: str, question: str) -> str:
    return text_of(graph(url, key).invoke(start(question))["messages"][-1])


if __name__ == "__main__":
    main(
        "langchain-openai",
        chat,
        chat_stream,
        responses,
        responses_stream,
        responses_previous,
        parallel,
        retries,
        compaction,
        edited,
        agent=agent,
        killed=chat_stream,
    )
