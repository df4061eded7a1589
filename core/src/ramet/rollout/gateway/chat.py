"""The dialect of `POST /v1/chat/completions` (OpenAI)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ramet.errors import InfraError
from ramet.rollout.gateway.messages import BadRequest, Role, Said, SaidCall, TurnReply, TurnRequest
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
    texts_of,
)
from ramet.types import ToolSchema

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
KNOWN = frozenset(
    "model messages tools tool_choice parallel_tool_calls stop max_tokens max_completion_tokens stream stream_options "
    "n user store metadata reasoning_effort service_tier verbosity prompt_cache_key safety_identifier".split()
)
REFUSED = {
    "logit_bias": "the policy's own distribution is trained",
    "logprobs": "token ids and log-probabilities are in the record of the run",
    "top_logprobs": "token ids and log-probabilities are in the record of the run",
    "response_format": "the policy's output is not constrained",
    "functions": "give tools",
    "function_call": "give tool_choice",
    "audio": "models of text",
    "modalities": "models of text",
    "prediction": "nothing is predicted",
    "web_search_options": "tools are the agent's own",
}
KINDS = {401: "authentication_error", 500: "server_error"}
FINISH = {"stop": "stop", "calls": "tool_calls", "length": "length"}


def read(body: Mapping[str, Any]) -> TurnRequest:
    """Raises `BadRequest`."""
    body = {name: value for name, value in body.items() if not (name == "modalities" and value == ["text"])}
    check_fields(body, known=KNOWN, refused=REFUSED)
    if body.get("n") not in (None, 1):
        raise BadRequest("n must be 1: every reply is a turn of the rollout", field="n")
    given = list_of(body.get("messages"), "messages")
    if not given:
        raise BadRequest("messages must not be empty", field="messages")
    messages = [_message(message, f"messages[{i}]") for i, message in enumerate(given)]
    check_results(messages, "messages")
    object_of(body.get("stream_options") or {}, "stream_options")
    return TurnRequest(
        messages=tuple(messages),
        tools=_tools(body),
        stop=texts_of(body, "stop"),
        max_tokens=count_of(body, "max_completion_tokens", "max_tokens"),
        model=text_of(body.get("model") or "", "model"),
        stream=flag_of(body, "stream"),
        asked=asked_sampling(body),
    )


def _message(message: Any, where: str) -> Said:
    message = object_of(message, where)
    role = ROLES.get(str(message.get("role")))
    if role is None:
        raise BadRequest(
            f"{where}.role: {message.get('role')!r:.80} must be one of {', '.join(ROLES)}", field=f"{where}.role"
        )
    if message.get("function_call") is not None:
        raise BadRequest(f"{where}.function_call is not supported: give tool_calls", field=f"{where}.function_call")
    content = message.get("content")
    content = "" if content is None and role == "assistant" else content
    text = parts_text(content, f"{where}.content", kinds=("text", "refusal"))
    if role == "tool":
        return Said(role="tool", text=text, call_id=text_of(message.get("tool_call_id"), f"{where}.tool_call_id"))
    calls = list_of(message.get("tool_calls") or [], f"{where}.tool_calls") if role == "assistant" else []
    return Said(role=role, text=text, calls=tuple(_call(c, f"{where}.tool_calls[{i}]") for i, c in enumerate(calls)))


def _call(call: Any, where: str) -> SaidCall:
    call = object_of(call, where)
    function = object_of(call.get("function"), f"{where}.function")
    return SaidCall(
        id=text_of(call.get("id"), f"{where}.id"),
        name=text_of(function.get("name"), f"{where}.function.name"),
        arguments=text_of(function.get("arguments"), f"{where}.function.arguments"),
    )


def _tools(body: Mapping[str, Any]) -> tuple[ToolSchema, ...]:
    if not offers_tools(body):
        return ()
    schemas = []
    for i, tool in enumerate(list_of(body.get("tools") or [], "tools")):
        where = f"tools[{i}]"
        if object_of(tool, where).get("type") != "function":
            raise BadRequest(f"{where}.type must be function, got {tool.get('type')!r}", field=f"{where}.type")
        schemas.append(schema_of(tool.get("function"), f"{where}.function", parameters="parameters"))
    return tuple(schemas)


def write(reply: TurnReply, body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the response."""
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": "chat.completion",
        "created": reply.created,
        "model": reply.model,
        "choices": [{"index": 0, "message": _written(reply), "finish_reason": FINISH[reply.finish], "logprobs": None}],
        "usage": usage(reply),
    }


def _written(reply: TurnReply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
    if reply.thoughts:
        message["reasoning_content"] = reply.thoughts
    if reply.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.calls
        ]
    return message


def usage(reply: TurnReply) -> dict[str, Any]:
    """The tokens of the turn."""
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.sampled_tokens,
        "total_tokens": reply.prompt_tokens + reply.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens},
    }


def events(reply: TurnReply, body: Mapping[str, Any]) -> Iterator[bytes]:
    """The reply as server-sent events: one delta for each part of the message."""
    message = _written(reply)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{name: message[name]} for name in ("reasoning_content", "content") if message.get(name)]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(message.get("tool_calls", ()))]
    for delta in deltas:
        yield _event(reply, [{"index": 0, "delta": delta, "finish_reason": None}])
    yield _event(reply, [{"index": 0, "delta": {}, "finish_reason": FINISH[reply.finish]}])
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _event(reply, [], usage=usage(reply))
    yield b"data: [DONE]\n\n"


def _event(reply: TurnReply, choices: Sequence[Mapping[str, Any]], **more: Any) -> bytes:
    chunk = {"id": f"chatcmpl-{reply.id}", "object": "chat.completion.chunk", "created": reply.created}
    data = json.dumps({**chunk, "model": reply.model, "choices": list(choices), **more})
    return f"data: {data}\n\n".encode()


def error(problem: BadRequest | InfraError) -> dict[str, Any]:
    """The body of a response that is an error."""
    kind = "server_error"
    field: str | None = None
    code: str | None = "engine_failed"
    if isinstance(problem, BadRequest):
        kind = KINDS.get(problem.status, "invalid_request_error")
        field, code = problem.field, problem.code
    return {"error": {"message": str(problem), "type": kind, "param": field, "code": code}}
