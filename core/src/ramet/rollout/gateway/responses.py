"""The dialect of `POST /v1/responses` (OpenAI).

A conversation is a list of items. An assistant's message and the calls after it are items of their own, and one turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ramet.rollout.gateway.kept import KeptResponses
from ramet.rollout.gateway.messages import BadRequest, Role, Said, SaidCall, TurnReply, TurnRequest, short_id
from ramet.rollout.gateway.reading import (
    asked_sampling,
    check_fields,
    check_results,
    count_of,
    flag_of,
    list_of,
    object_of,
    offers_tools,
    parts_text,
    schema_of,
    text_of,
)
from ramet.types import ToolSchema

ROLES: Mapping[Any, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
PARTS = ("input_text", "output_text", "refusal")
KNOWN = frozenset(
    "model input instructions previous_response_id tools tool_choice parallel_tool_calls max_tool_calls "
    "max_output_tokens stream stream_options store include reasoning text truncation metadata client_metadata user "
    "service_tier prompt_cache_key prompt_cache_options prompt_cache_retention safety_identifier".split()
)
REFUSED = {
    "logit_bias": "the policy's own distribution is trained",
    "top_logprobs": "token ids and log-probabilities are in the record of the run",
    "background": "a reply is sent to the request that asked for it",
    "conversation": "send the items, or give previous_response_id",
    "context_management": "the agent shortens its conversation itself",
    "prompt": "there are no stored prompts; give instructions and input",
    "moderation": "nothing is moderated",
}
LOGPROBS = "message.output_text.logprobs"


def resolve(body: Mapping[str, Any], kept: KeptResponses) -> dict[str, Any]:
    """The body with its conversation in full: `input` is a list of items, and none refers to an earlier reply.

    Raises `BadRequest`.
    """
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else list_of(given or [], "input")
    items = [_resolved(object_of(item, f"input[{i}]"), kept, f"input[{i}]") for i, item in enumerate(items)]
    if (previous := body.get("previous_response_id")) is not None:
        response = kept.response(previous, "previous_response_id", "previous_response_not_found")
        items = [*response.items, *items]
    return {**body, "input": items}


def _resolved(item: Mapping[str, Any], kept: KeptResponses, where: str) -> Mapping[str, Any]:
    is_reference = item.get("type") == "item_reference" or (item.keys() <= {"id", "type"} and item.get("type") is None)
    return kept.item(item.get("id"), f"{where}.id") if is_reference else item


def keep(reply: TurnReply, body: Mapping[str, Any], kept: KeptResponses) -> None:
    """Keep the reply to this resolved body, unless its client wants to send it back itself."""
    if flag_of(body, "store", default=True):
        kept.add(write(reply, body), body["input"])


def read(body: Mapping[str, Any]) -> TurnRequest:
    """Read a resolved body. Raises `BadRequest`."""
    check_fields(body, known=KNOWN, refused=REFUSED)
    _check_text(body)
    for name in ("store", "parallel_tool_calls"):
        flag_of(body, name, default=True)
    for name in ("metadata", "reasoning"):
        object_of(body.get(name) or {}, name)
    if LOGPROBS in list_of(body.get("include") or [], "include"):
        raise BadRequest(f"{LOGPROBS} is not supported: {REFUSED['top_logprobs']}", field="include")
    messages = _messages(body["input"])
    if not messages:
        raise BadRequest("input must have at least one message", field="input")
    check_results(messages, "input")
    if instructions := text_of(body.get("instructions") or "", "instructions"):
        messages.insert(0, Said(role="system", text=instructions))
    return TurnRequest(
        messages=tuple(messages),
        tools=_tools(body),
        max_tokens=count_of(body, "max_output_tokens"),
        model=text_of(body.get("model") or "", "model"),
        stream=flag_of(body, "stream"),
        asked=asked_sampling(body),
    )


def _check_text(body: Mapping[str, Any]) -> None:
    """Refuse a format of the output other than text."""
    form = object_of(object_of(body.get("text") or {}, "text").get("format") or {"type": "text"}, "text.format")
    if (kind := form.get("type")) != "text":
        raise BadRequest(
            f"text.format.type must be text, got {kind!r:.80}: the policy's output is not constrained",
            field="text.format",
        )


def _messages(items: Sequence[Any]) -> list[Said]:
    """The messages of a conversation; an assistant's message and the calls of the same turn are one."""
    turns: list[tuple[str, Said]] = []  # each with the turn that its ids name, "" for ids from elsewhere
    for number, item in enumerate(items):
        where = f"input[{number}]"
        kind = object_of(item, where).get("type") or "message"
        if kind == "message":
            turns.append((_turn_of(item.get("id"), "msg_"), _message(item, where)))
        elif kind == "function_call":
            _add_call(turns, _call(item, where))
        elif kind == "function_call_output":
            output = parts_text(item.get("output"), f"{where}.output", kinds=PARTS)
            call_id = text_of(item.get("call_id"), f"{where}.call_id")
            turns.append(("", Said(role="tool", text=output, call_id=call_id)))
        elif kind != "reasoning":
            raise BadRequest(
                f"{where}.type: {kind!r:.80} is not supported, only message, function_call, function_call_output, "
                "reasoning, item_reference",
                field=f"{where}.type",
            )
    return [said for _, said in turns]


def _turn_of(id: Any, beginning: str) -> str:
    """The turn in an id that this gateway gave: `msg_TURN`, `call_TURN_NUMBER`; "" for any other id."""
    return id.split("_")[1] if isinstance(id, str) and id.startswith(beginning) else ""


def _message(item: Mapping[str, Any], where: str) -> Said:
    role = ROLES.get(item.get("role")) if isinstance(item.get("role"), str) else None
    if role is None:
        raise BadRequest(
            f"{where}.role: {item.get('role')!r:.80} is not one of {', '.join(ROLES)}", field=f"{where}.role"
        )
    return Said(role=role, text=parts_text(item.get("content"), f"{where}.content", kinds=PARTS))


def _call(item: Mapping[str, Any], where: str) -> SaidCall:
    return SaidCall(
        id=text_of(item.get("call_id"), f"{where}.call_id"),
        name=text_of(item.get("name"), f"{where}.name"),
        arguments=text_of(item.get("arguments"), f"{where}.arguments"),
    )


def _add_call(turns: list[tuple[str, Said]], call: SaidCall) -> None:
    """Add the call to the assistant's message right before it, or to its own turn's if only results lie between."""
    turn, place = _turn_of(call.id, "call_"), len(turns) - 1
    while place >= 0 and turns[place][1].role == "tool":
        place -= 1
    before, said = turns[place] if place >= 0 else ("", None)
    is_next = place == len(turns) - 1 and "" in (before, turn)
    if said is not None and said.role == "assistant" and (is_next or (turn and turn == before)):
        turns[place] = (turn or before, replace(said, calls=(*said.calls, call)))
    else:
        turns.append((turn, Said(role="assistant", text="", calls=(call,))))


def _tools(body: Mapping[str, Any]) -> tuple[ToolSchema, ...]:
    schemas = []
    for i, tool in enumerate(list_of(body.get("tools") or [], "tools")):
        where = f"tools[{i}]"
        if (kind := object_of(tool, where).get("type")) != "function":
            raise BadRequest(
                f"{where}.type must be function, got {kind!r:.80}: tools are the agent's own", field=f"{where}.type"
            )
        schemas.append(schema_of(tool, where, parameters="parameters"))
    return tuple(schemas) if offers_tools(body) else ()


def write(reply: TurnReply, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the response."""
    is_cut = reply.finish == "length"
    return {
        **_begun(reply, body),
        "status": "incomplete" if is_cut else "completed",
        "completed_at": None if is_cut else reply.created,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": _output(reply),
        "usage": {
            "input_tokens": reply.prompt_tokens,
            "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": reply.sampled_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
        },
    }


def _begun(reply: TurnReply, body: Mapping[str, Any]) -> dict[str, Any]:
    """The response before its output, with what the request said of it."""
    return {
        "id": f"resp_{short_id(reply.id)}",
        "object": "response",
        "created_at": reply.created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls"),
        "metadata": body.get("metadata") or {},
        "model": reply.model,
        "output": [],
        "parallel_tool_calls": flag_of(body, "parallel_tool_calls", default=True),
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
        "service_tier": "default",
        "store": flag_of(body, "store", default=True),
        "temperature": body.get("temperature"),
        "text": {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": body.get("top_p"),
        "truncation": "disabled",
        "usage": None,
    }


def _output(reply: TurnReply) -> list[dict[str, Any]]:
    """The items of the reply: thoughts, text, calls. A reply without text and calls has an empty text."""
    id, status = short_id(reply.id), "incomplete" if reply.finish == "length" else "completed"
    items: list[dict[str, Any]] = []
    if reply.thoughts:
        thoughts = [{"type": "reasoning_text", "text": reply.thoughts}]
        items.append({"type": "reasoning", "id": f"rs_{id}", "summary": [], "content": thoughts, "status": status})
    if reply.text or not reply.calls:
        text = [{"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}]
        items.append({"type": "message", "id": f"msg_{id}", "role": "assistant", "content": text, "status": status})
    for number, call in enumerate(reply.calls):
        function = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", "id": f"fc_{id}_{number}", **function, "status": status})
    return items


def events(reply: TurnReply, body: Mapping[str, Any]) -> Iterator[bytes]:
    """The reply as server-sent events: one delta for each item."""
    begun, done = _begun(reply, body), write(reply, body)
    named: list[tuple[str, dict[str, Any]]] = [(name, {"response": begun}) for name in ("created", "in_progress")]
    for index, item in enumerate(done["output"]):
        named += _item_events(item, index)
    named.append((done["status"], {"response": done}))
    for number, (name, fields) in enumerate(named):
        data = json.dumps({"type": f"response.{name}", "sequence_number": number, **fields})
        yield f"event: response.{name}\ndata: {data}\n\n".encode()


def _item_events(item: Mapping[str, Any], index: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of one item of the output, by name."""
    empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
    yield "output_item.added", {"output_index": index, "item": {**item, **empty, "status": "in_progress"}}
    place = {"item_id": item["id"], "output_index": index}
    if item["type"] == "function_call":
        yield "function_call_arguments.delta", {**place, "delta": item["arguments"]}
        yield "function_call_arguments.done", {**place, "name": item["name"], "arguments": item["arguments"]}
    else:
        yield from _part_events(item["content"][0], {**place, "content_index": 0})
    yield "output_item.done", {"output_index": index, "item": item}


def _part_events(part: Mapping[str, Any], place: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of the one part of a message or of thoughts."""
    kind = part["type"]
    more: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
    yield "content_part.added", {**place, "part": {**part, "text": ""}}
    yield f"{kind}.delta", {**place, "delta": part["text"], **more}
    yield f"{kind}.done", {**place, "text": part["text"], **more}
    yield "content_part.done", {**place, "part": part}
