"""How an agent writes its conversation and reads replies in each dialect, as its clients do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Item: TypeAlias = dict[str, Any]  # of a conversation: a message, or in `/v1/responses` an item

PARAMETERS = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "what to look for"}, "limit": {"type": "integer"}},
    "required": ["query"],
}
FUNCTIONS = [
    {"name": name, "description": f"Runs the {name} and returns what it found.", "parameters": PARAMETERS}
    for name in ("search", "python", "read_page")
]
SYSTEM = "You are a careful assistant. Use the tools where they help, then say what you found in a few words."


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """`said` and `streamed` read a reply, as one body or as its events: what the conversation continues with."""

    path: str
    body: Callable[[Sequence[Item]], dict[str, Any]]
    said: Callable[[Mapping[str, Any]], list[Item]]
    streamed: Callable[[Sequence[Mapping[str, Any]]], list[Item]]
    results: Callable[[Sequence[Item], str], list[Item]]  # of the reply's calls, each with this text

    def answered(self, said: list[Item], text: str) -> list[Item]:
        """The reply, and the results of its calls."""
        return [*said, *self.results(said, text)]


def _chat_body(conversation: Sequence[Item]) -> dict[str, Any]:
    tools = [{"type": "function", "function": function} for function in FUNCTIONS]
    return {"model": "policy", "messages": [{"role": "system", "content": SYSTEM}, *conversation], "tools": tools}


def _chat_streamed(events: Sequence[Mapping[str, Any]]) -> list[Item]:
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    text = "".join(delta.get("content") or "" for delta in deltas)
    return [{"role": "assistant", "content": text, "tool_calls": calls}]


def _chat_results(said: Sequence[Item], text: str) -> list[Item]:
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in said[0]["tool_calls"]]


def _responses_body(conversation: Sequence[Item]) -> dict[str, Any]:
    tools = [{"type": "function", **function} for function in FUNCTIONS]
    return {"model": "policy", "instructions": SYSTEM, "input": list(conversation), "tools": tools}


def _responses_results(said: Sequence[Item], text: str) -> list[Item]:
    ids = [item["call_id"] for item in said if item["type"] == "function_call"]
    return [{"type": "function_call_output", "call_id": id, "output": text} for id in ids]


def _messages_body(conversation: Sequence[Item]) -> dict[str, Any]:
    tools = [{"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in FUNCTIONS]
    return {"model": "policy", "max_tokens": 1000, "system": SYSTEM, "messages": list(conversation), "tools": tools}


def _messages_streamed(events: Sequence[Mapping[str, Any]]) -> list[Item]:
    blocks: list[Item] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta = {name: value for name, value in event["delta"].items() if name != "type"}
            if "partial_json" in delta:
                delta = {"input": json.loads(delta["partial_json"])}
            blocks[-1].update(delta)
    return [{"role": "assistant", "content": blocks}]


def _messages_results(said: Sequence[Item], text: str) -> list[Item]:
    calls = [block["id"] for block in said[0]["content"] if block["type"] == "tool_use"]
    return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": text} for id in calls]}]


DIALECTS = {
    "chat": Dialect(
        path="/v1/chat/completions",
        body=_chat_body,
        said=lambda reply: [reply["choices"][0]["message"]],
        streamed=_chat_streamed,
        results=_chat_results,
    ),
    "responses": Dialect(
        path="/v1/responses",
        body=_responses_body,
        said=lambda reply: reply["output"],
        streamed=lambda events: events[-1]["response"]["output"],
        results=_responses_results,
    ),
    "messages": Dialect(
        path="/v1/messages",
        body=_messages_body,
        said=lambda reply: [{"role": "assistant", "content": reply["content"]}],
        streamed=_messages_streamed,
        results=_messages_results,
    ),
}
