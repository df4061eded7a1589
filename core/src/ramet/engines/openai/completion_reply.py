"""The reply of a server's `/completions`: token ids, why it ended, and at which stop string."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.engines.protocol import Completion, FinishReason, Request
from ramet.errors import InfraError
from ramet.models.encoder import Encoder

CUT_OFF = {"abort", "error", "content_filter"}  # finish reasons of which none is the model's doing
REASONS = ("stop_reason", "matched_stop", "stopping_word")  # vLLM, SGLang, llama.cpp: the stop string or token


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReply:
    completion: Completion
    has_ids: bool  # the server gave them
    counted: int | None  # tokens that it says it sampled


def read_reply(reply: Mapping[str, Any], request: Request, encoder: Encoder) -> ServerReply:
    """Raises `InfraError` for a reply without a choice, with invalid ids, or cut off by the server."""
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("text"), str):
        raise InfraError(f"request {request.id!r}: the server's reply has no choice with a text")
    if choice.get("finish_reason") in CUT_OFF:
        raise InfraError(f"request {request.id!r}: the server cut its reply off ({choice['finish_reason']})")
    text, reason = choice["text"], next((choice[key] for key in REASONS if choice.get(key) is not None), None)
    token_ids = choice.get("token_ids")
    ids = None if token_ids is None else _ids(token_ids, request)
    finish, stop = _ended(choice, text, reason, ids, request)
    if ids is None:
        ids = encoder.markup(_with_stop(text, stop))
        ends = request.sampling.stop_token_ids
        if finish is FinishReason.END and ends and (not ids or ids[-1] not in ends):
            ids.append(encoder.end_of_turn_id)
    usage = reply.get("usage") if isinstance(reply.get("usage"), dict) else {}
    details = (usage or {}).get("prompt_tokens_details") or {}
    logprobs = _logprobs(choice.get("logprobs"), len(ids))
    completion = Completion(
        token_ids=ids,
        logprobs=logprobs,
        entropies=array("f"),
        finish=finish,
        stop=stop,
        policy_versions=array("i", bytes(4 * len(ids))),
        prompt_tokens=len(request.token_ids),
        cached_tokens=int(details.get("cached_tokens") or 0),
    )
    counted = (usage or {}).get("completion_tokens")
    return ServerReply(completion=completion, has_ids=token_ids is not None, counted=counted)


def _ids(token_ids: Any, request: Request) -> array[int]:
    try:
        return array("i", token_ids)
    except (TypeError, OverflowError) as error:
        raise InfraError(f"request {request.id!r}: the server's token_ids are not token ids: {error}") from error


def _ended(
    choice: Mapping[str, Any], text: str, reason: object, ids: Sequence[int] | None, request: Request
) -> tuple[FinishReason, str | None]:
    stops = request.sampling.stop
    if choice.get("finish_reason") == "length":
        return FinishReason.LENGTH, None
    if reason in stops:
        return FinishReason.STOP, str(reason)
    if ids and ids[-1] in request.sampling.stop_token_ids:
        return FinishReason.END, None
    ending = [stop for stop in stops if text.endswith(stop)]
    return (FinishReason.STOP, max(ending, key=len)) if ending else (FinishReason.END, None)


def _with_stop(text: str, stop: str | None) -> str:
    """Servers that do not know `include_stop_str_in_output` leave it out."""
    return text if stop is None or text.endswith(stop) else text + stop


def _logprobs(logprobs: Any, n: int) -> array[float]:
    """Return the log-probability of every token; empty where the server gave none, or not `n` numbers."""
    values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
    usable = isinstance(values, list) and len(values) == n and all(isinstance(value, int | float) for value in values)
    return array("f", values if usable and values else [])
