"""Scenarios of `langgraph` with `langchain-openai`: a ready agent, and a graph by hand."""

from __future__ import annotations

from typing import Any

from common import QUESTION, main
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def graph(url: str, key: str, **options: Any) -> Any:
    model = ChatOpenAI(model="policy", base_url=url, api_key=key, **options).bind_tools([add])
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode([add]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile()


def start() -> Any:
    return {"messages": [SystemMessage("You calculate."), HumanMessage(QUESTION)]}


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


if __name__ == "__main__":
    main("langchain-openai", chat, chat_stream, responses, responses_stream, responses_previous)
