"""Requests and replies of an agent, whatever dialect they come in.

A dialect (`chat`, `responses`, `anthropic`, `completions`) reads a body into a `TurnRequest` and writes a `TurnReply`
as its clients expect it. What they say of a message is compared by its `key`: ids, `refusal`, annotations and cache
marks are no part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Literal, TypeAlias

from ramet.io.json_values import json_fault, too_deep
from ramet.types import ToolSchema

Role = Literal["system", "user", "assistant", "tool"]
Digest: TypeAlias = bytes
Key: TypeAlias = tuple[Any, ...]  # hashable; equal exactly where two messages say the same
_sorted = json.JSONEncoder(sort_keys=True)  # made once: `json.dumps` makes one for each call
CONTEXT_LENGTH = "context_length_exceeded"  # the code by which clients know that they must shorten a conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class SaidCall:
    """A tool call of an assistant's message."""

    id: str  # the gateway's own, or what the client wrote
    name: str
    arguments: str  # JSON, as the model or the client wrote it

    @property
    def parsed(self) -> Any:
        """The arguments as an object; the text itself where it is not JSON, or too deep for readers of JSON."""
        try:
            value = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return self.arguments
        return self.arguments if too_deep(value) or json_fault(value) is not None else value

    @property
    def key(self) -> Key:
        """The name and the arguments, in one spelling."""
        return self.name, _sorted.encode(_one_spelling(self.parsed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message of a request."""

    role: Role
    text: str
    calls: tuple[SaidCall, ...] = ()  # of an assistant
    call_id: str = ""  # of a tool: the call that it answers

    @property
    def key(self) -> Key:
        """The role, the text and the calls. Space around an assistant's text is left out, as clients do."""
        text = self.text.strip() if self.role == "assistant" else self.text
        return self.role, text, tuple(call.key for call in self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A request for one assistant's message."""

    messages: tuple[Said, ...]
    tools: tuple[ToolSchema, ...] = ()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None  # None: as many as the session allows
    model: str = ""  # as the client named it
    stream: bool = False
    asked: Mapping[str, Any] = field(default_factory=dict)  # sampling that the client asks for: recorded, not followed
    prompt: str | None = None  # a text to continue, without a chat template (`/v1/completions`); then without messages


def in_call_order(request: TurnRequest) -> TurnRequest:
    """The request with the results of a turn's calls in the order of the calls: chat templates show no ids.

    Results of calls that the turn did not make come last.
    """
    ordered: list[Said] = []
    for is_result, run in groupby(request.messages, key=lambda said: said.role == "tool"):
        ids = [call.id for call in ordered[-1].calls] if is_result and ordered else []
        place = {id: number for number, id in enumerate(ids)}
        ordered += sorted(run, key=lambda said: place.get(said.call_id, len(place)))
    return replace(request, messages=tuple(ordered))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReply:
    """An assistant's message, as it was sampled."""

    id: str  # unique within the gateway
    created: int  # seconds since 1970
    model: str
    text: str  # without calls and thoughts
    thoughts: str = ""
    calls: tuple[SaidCall, ...] = ()
    finish: Literal["stop", "calls", "length"]
    stop: str | None = None  # the client's stop string, if one ended it; it is not in the text
    prompt_tokens: int
    sampled_tokens: int
    cached_tokens: int  # of the prompt's

    @property
    def said(self) -> Said:
        """The message as a client sends it back."""
        return Said(role="assistant", text=self.text, calls=self.calls)


class BadRequest(Exception):
    """A request that cannot be served: `status` of HTTP, the `field` at fault, and a code that clients know."""

    def __init__(self, message: str, *, status: int = 400, field: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.field, self.code = status, field, code

    def again(self) -> BadRequest:
        """An equal error to keep, without the frames that this one has passed."""
        error = type(self).__new__(type(self), *self.args)
        vars(error).update(vars(self))
        return error


def _one_spelling(value: Any) -> Any:
    """JSON with 1.0 as 1, as JavaScript writes it."""
    if isinstance(value, dict):
        return {name: _one_spelling(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_one_spelling(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class TooLong(BadRequest):
    """A request for which no room is left: it has `n_tokens`, and at most `most` would have been served."""

    def __init__(self, message: str, *, n_tokens: int, most: int) -> None:
        super().__init__(message, code=CONTEXT_LENGTH)
        self.n_tokens, self.most = n_tokens, most


def short_id(text: str) -> str:
    """An id of letters and digits that stands for a longer one."""
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def text_difference(recorded: str, found: str, shown: int = 60) -> str:
    """Say where a text begins to differ from the recorded one, in so many characters of each."""
    pairs = enumerate(zip(recorded, found, strict=False))
    start = next((i for i, (one, other) in pairs if one != other), min(len(recorded), len(found)))
    before = recorded[max(0, start - shown) : start]
    return f"after {before!r} it has {found[start : start + shown]!r}, not {recorded[start : start + shown]!r}"
