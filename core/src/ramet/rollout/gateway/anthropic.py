"""The dialect of `POST /v1/messages` and `POST /v1/messages/count_tokens` (Anthropic).

A message is a list of blocks. Results of tools are blocks of a user's message; each becomes a message of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ramet.errors import InfraError
from ramet.rollout.gateway.messages import BadRequest, Said, SaidCall, TooLong, TurnReply, TurnRequest, short_id
from ramet.rollout.gateway.reading import (
    asked_sampling,
    check_fields,
    check_results,
    count_of,
    flag_of,
    list_of,
    object_of,
    parts_text,
    schema_of,
    text_of,
    texts_of,
)
from ramet.types import ToolSchema

KNOWN = frozenset(
    "model messages system max_tokens stop_sequences stream tools tool_choice metadata thinking output_config "
    "context_management service_tier cache_control inference_geo speed diagnostics user_profile_id fallbacks "
    "billing_policy thread".split()
)
REFUSED = {
    "n": "every reply is a turn of the rollout",
    "logit_bias": "the policy's own distribution is trained",
    "output_format": "the policy's output is not constrained",
    "mcp_servers": "tools are the agent's own",
    "container": "tools are the agent's own",
    "compaction": "the agent shortens its conversation itself",
}
KEEPS_TEXT = "clear_thinking"  # edits of the context whose type begins so change no text
BILLING = "x-anthropic-billing-header:"  # a system block of Claude Code for its vendor's server, new in each request
STOPS = {"stop": "end_turn", "calls": "tool_use", "length": "max_tokens"}
KINDS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 500: "api_error"}
NO_THREAD = "thread_unsupported_request"  # clients that see it send the conversation in full
PING = b'event: ping\ndata: {"type": "ping"}\n\n'


def read(body: Mapping[str, Any]) -> TurnRequest:
    """Raises `BadRequest`."""
    request = read_count(body)
    if request.messages[-1].role == "assistant":
        raise BadRequest("messages must end with a user's message: a reply is sampled from its start", field="messages")
    if request.max_tokens is None:
        raise BadRequest("max_tokens is required", field="max_tokens")
    return request


def read_count(body: Mapping[str, Any]) -> TurnRequest:
    """Read a body whose tokens are counted: it may end with any message, and needs no `max_tokens`.

    Raises `BadRequest`.
    """
    check_fields(body, known=KNOWN, refused=REFUSED)
    _check_edits(body)
    if body.get("thread") is not None:
        raise BadRequest("thread is not supported: send the conversation in full", field="thread", code=NO_THREAD)
    object_of(body.get("thinking") or {}, "thinking")
    if object_of(body.get("output_config") or {}, "output_config").get("format") is not None:
        raise BadRequest(
            f"output_config.format is not supported: {REFUSED['output_format']}", field="output_config.format"
        )
    given = list_of(body.get("messages"), "messages")
    if not given:
        raise BadRequest("messages must not be empty", field="messages")
    messages = [said for i, message in enumerate(given) for said in _messages(message, f"messages[{i}]")]
    check_results(messages, "messages")
    if system := _system(body.get("system")):
        messages.insert(0, Said(role="system", text=system))
    return TurnRequest(
        messages=tuple(messages),
        tools=_tools(body),
        stop=texts_of(body, "stop_sequences"),
        max_tokens=count_of(body, "max_tokens"),
        model=text_of(body.get("model") or "", "model"),
        stream=flag_of(body, "stream"),
        asked=asked_sampling(body),
    )


def _check_edits(body: Mapping[str, Any]) -> None:
    """Refuse edits that the server would make to the conversation, but for those that leave all text."""
    management = object_of(body.get("context_management") or {}, "context_management")
    for i, edit in enumerate(list_of(management.get("edits") or [], "context_management.edits")):
        where = f"context_management.edits[{i}]"
        if not str(object_of(edit, where).get("type")).startswith(KEEPS_TEXT):
            raise BadRequest(
                f"{where}: {edit.get('type')!r:.80} is not supported: the agent shortens its conversation itself",
                field=where,
            )


def _system(content: Any) -> str:
    """The text of `system`. A block that says who pays for the request is not for the model."""
    if isinstance(content, list):
        content = [b for b in content if not (isinstance(b, dict) and str(b.get("text")).startswith(BILLING))]
    return parts_text(content or "", "system", kinds=("text",), between="\n")


def _messages(message: Any, where: str) -> list[Said]:
    """Read one message of a body. Each result of a tool in it is a message, and the text after them is one more."""
    role = object_of(message, where).get("role")
    read_blocks = READERS.get(role) if isinstance(role, str) else None
    if read_blocks is None:
        raise BadRequest(f"{where}.role: {role!r:.80} is not one of {', '.join(READERS)}", field=f"{where}.role")
    content, place = message.get("content"), f"{where}.content"
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    return read_blocks([object_of(b, f"{place}[{i}]") for i, b in enumerate(list_of(content, place))], place)


def _of_system(blocks: Sequence[Mapping[str, Any]], where: str) -> list[Said]:
    return [Said(role="system", text=parts_text(blocks, where, kinds=("text",), between="\n"))]


def _of_user(blocks: Sequence[Mapping[str, Any]], where: str) -> list[Said]:
    kinds = _kinds(blocks, where, ("text", "tool_result"))
    n_results = kinds.index("text") if "text" in kinds else len(kinds)
    if "tool_result" in kinds[n_results:]:
        raise BadRequest(f"{where}: blocks of type 'tool_result' come first, and a text after them", field=where)
    said = [_result(block, f"{where}[{i}]") for i, block in enumerate(blocks[:n_results])]
    texts = [_text(block, f"{where}[{i}]") for i, block in enumerate(blocks) if i >= n_results]
    return [*said, Said(role="user", text="\n".join(texts))] if texts or not said else said


def _result(block: Mapping[str, Any], where: str) -> Said:
    text = parts_text(block.get("content") or "", f"{where}.content", kinds=("text",), between="\n")
    if flag_of(block, "is_error", where=where) and not text.lower().startswith("error"):
        text = f"Error: {text}"  # chat templates have no other way to say it
    return Said(role="tool", text=text, call_id=text_of(block.get("tool_use_id"), f"{where}.tool_use_id"))


def _of_assistant(blocks: Sequence[Mapping[str, Any]], where: str) -> list[Said]:
    """Thoughts are left out: those that were sampled are recorded."""
    text, calls = "", list[SaidCall]()
    for i, kind in enumerate(_kinds(blocks, where, ("text", "tool_use", "thinking", "redacted_thinking"))):
        if kind == "text":
            text += _text(blocks[i], f"{where}[{i}]")
        elif kind == "tool_use":
            calls.append(_call(blocks[i], f"{where}[{i}]"))
    return [Said(role="assistant", text=text, calls=tuple(calls))]


READERS: dict[str, Callable[[Sequence[Mapping[str, Any]], str], list[Said]]] = {
    "user": _of_user,
    "assistant": _of_assistant,
    "system": _of_system,
}


def _kinds(blocks: Sequence[Mapping[str, Any]], where: str, known: Sequence[str]) -> list[str]:
    """The type of each block. Raises `BadRequest` for one that is not known."""
    for i, block in enumerate(blocks):
        if (kind := block.get("type")) not in known:
            at = f"{where}[{i}]"
            raise BadRequest(f"{at}: blocks of type {kind!r:.80} are not supported, only {', '.join(known)}", field=at)
    return [block["type"] for block in blocks]


def _text(block: Mapping[str, Any], where: str) -> str:
    return text_of(block.get("text"), f"{where}.text")


def _call(block: Mapping[str, Any], where: str) -> SaidCall:
    return SaidCall(
        id=text_of(block.get("id"), f"{where}.id"),
        name=text_of(block.get("name"), f"{where}.name"),
        arguments=json.dumps(object_of(block.get("input"), f"{where}.input"), ensure_ascii=False),
    )


def _tools(body: Mapping[str, Any]) -> tuple[ToolSchema, ...]:
    schemas = []
    for i, tool in enumerate(list_of(body.get("tools") or [], "tools")):
        where = f"tools[{i}]"
        if (kind := object_of(tool, where).get("type")) not in (None, "custom"):
            raise BadRequest(
                f"{where}.type must be custom, got {kind!r:.80}: tools are the agent's own", field=f"{where}.type"
            )
        schemas.append(schema_of(tool, where, parameters="input_schema"))
    choice = object_of(body.get("tool_choice") or {"type": "auto"}, "tool_choice").get("type")
    if choice not in ("auto", "none"):
        raise BadRequest(
            f"tool_choice.type must be auto or none, got {choice!r:.80}: nothing is forced", field="tool_choice.type"
        )
    return tuple(schemas) if choice == "auto" else ()


def write(reply: TurnReply, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the response."""
    stops_at = reply.stop is not None and reply.finish == "stop"
    return {
        "id": f"msg_{short_id(reply.id)}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": _blocks(reply, body),
        "stop_reason": "stop_sequence" if stops_at else STOPS[reply.finish],
        "stop_sequence": reply.stop if stops_at else None,
        "usage": {
            "input_tokens": reply.prompt_tokens - reply.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": reply.cached_tokens,
            "output_tokens": reply.sampled_tokens,
        },
    }


def _blocks(reply: TurnReply, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Thoughts, unless the client wants none; text; calls. A reply without text and calls has an empty text."""
    blocks: list[dict[str, Any]] = []
    if reply.thoughts and (body.get("thinking") or {}).get("type") != "disabled":
        blocks.append({"type": "thinking", "thinking": reply.thoughts, "signature": short_id(reply.id)})
    if reply.text or not reply.calls:
        blocks.append({"type": "text", "text": reply.text})
    blocks += [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.parsed} for call in reply.calls]
    return blocks


def events(reply: TurnReply, body: Mapping[str, Any]) -> Iterator[bytes]:
    """The reply as server-sent events: one delta for each block."""
    message = write(reply, body)
    usage = {**message["usage"], "output_tokens": 0}
    begun = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    yield _event("message_start", message=begun)
    for index, block in enumerate(message["content"]):
        empty, deltas = _parts(block)
        yield _event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    stop = {name: message[name] for name in ("stop_reason", "stop_sequence")}
    yield _event("message_delta", delta=stop, usage=message["usage"])
    yield _event("message_stop")


def _parts(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block before its content, and the deltas that make it complete."""
    if block["type"] == "tool_use":
        arguments = json.dumps(block["input"])
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": arguments}]
    if block["type"] == "thinking":
        thoughts = {"type": "thinking_delta", "thinking": block["thinking"]}
        signature = {"type": "signature_delta", "signature": block["signature"]}
        return {**block, "thinking": "", "signature": ""}, [thoughts, signature]
    return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def error(problem: BadRequest | InfraError) -> dict[str, Any]:
    """The body of a response that is an error; a prompt that is too long in the words that harnesses look for."""
    kind = "api_error" if isinstance(problem, InfraError) else KINDS.get(problem.status, "invalid_request_error")
    message = str(problem)
    if isinstance(problem, TooLong):
        message = f"prompt is too long: {problem.n_tokens} tokens > {problem.most} maximum ({problem})"
    body = {"type": kind, "message": message}
    details = {"details": {"error_code": NO_THREAD}} if getattr(problem, "code", None) == NO_THREAD else {}
    return {"type": "error", "error": {**body, **details}}
