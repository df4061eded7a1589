"""Requests to models and their replies during scoring: kept with the result, and answered from it later.

A job that scores (`ramet eval`, `ramet judge`) opens `collected()` around it, and every chat of a client in it is
noted. A replay opens `answered_from(exchanges)`: the same questions then get the stored answers, and no server is
asked.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from ramet.errors import InfraError
from ramet.helpers.openai.options import ChatReply, RequestRefused
from ramet.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatExchange:
    """One question to a model and its answer as it came; where the client's check had it asked again, the last one."""

    client: str  # whose server, as its key in messages
    prompt: str  # name and version of the prompt, if the caller gave one
    messages: tuple[Message, ...]
    parameters: Mapping[str, Any]  # of the request
    model: str = ""  # that answered, as the server says
    reply: str | None = None  # None: no reply
    finish: str = ""
    accepted: bool = False  # by the caller's check
    error: str | None = None  # why it has no reply
    status: int | None = None  # of a request that the server refused for good

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> ChatExchange:
        """Read an exchange from JSON."""
        return cls(**{**body, "messages": tuple(Message(**message) for message in body["messages"])})

    def answer(self) -> ChatReply:
        """Return the client's reply, or raise its error."""
        if self.status is not None:
            raise RequestRefused(self.error or "", status=self.status)
        if self.reply is None:
            raise InfraError(self.error or "")
        return ChatReply(text=self.reply, finish=self.finish, model=self.model, cached=True, accepted=self.accepted)


class StoredReplies:
    """Answers by question. The same question with several answers gets the last that is one."""

    def __init__(self, exchanges: Iterable[ChatExchange]) -> None:
        self._known: dict[str, ChatExchange] = {}
        for exchange in exchanges:
            key = _key(exchange.messages, exchange.parameters)
            if exchange.reply is not None or key not in self._known:
                self._known[key] = exchange

    def find(self, messages: Sequence[Message], parameters: Mapping[str, Any]) -> ChatExchange | None:
        return self._known.get(_key(messages, parameters))


_collected: ContextVar[list[ChatExchange] | None] = ContextVar("collected", default=None)
_stored: ContextVar[StoredReplies | None] = ContextVar("stored", default=None)


@contextmanager
def collected() -> Iterator[list[ChatExchange]]:
    """Collect all that is asked in the block and its tasks; sorted when the block ends, since tasks race."""
    exchanges: list[ChatExchange] = []
    token = _collected.set(exchanges)
    try:
        yield exchanges
    finally:
        _collected.reset(token)
        exchanges.sort(key=lambda exchange: _key(exchange.messages, exchange.parameters))


@contextmanager
def answered_from(exchanges: Iterable[ChatExchange]) -> Iterator[None]:
    """Answer the chats in the block from these exchanges; others raise `InfraError`. No server is asked."""
    token = _stored.set(StoredReplies(exchanges))
    try:
        yield
    finally:
        _stored.reset(token)


def is_replaying() -> bool:
    """Whether chats are answered from stored exchanges."""
    return _stored.get() is not None


async def answered(
    ask: Callable[[], Awaitable[ChatReply]],
    *,
    client: str,
    prompt: str,
    messages: Sequence[Message],
    parameters: Mapping[str, Any],
) -> ChatReply:
    """Return what `ask` returns; in a replay the stored answer. Both are noted, and so is an `InfraError`."""
    stored = _stored.get()
    stored_exchange = None if stored is None else stored.find(messages, parameters)
    # a replay keeps the name, which an earlier version may have given
    whose = client if stored_exchange is None else stored_exchange.client
    asked = partial(ChatExchange, client=whose, prompt=prompt, messages=tuple(messages), parameters=parameters)
    try:
        if stored is None:
            reply = await ask()
        elif stored_exchange is not None:
            reply = stored_exchange.answer()
        else:
            raise InfraError(f"{client}: this question is not among the stored ones")
    except InfraError as error:
        status = error.status if isinstance(error, RequestRefused) else None
        _note(asked(error=str(error), status=status))
        raise
    _note(asked(model=reply.model, reply=reply.text, finish=reply.finish, accepted=reply.accepted))
    return reply


def _note(exchange: ChatExchange) -> None:
    if (exchanges := _collected.get()) is not None:
        exchanges.append(exchange)


def _key(messages: Sequence[Message], parameters: Mapping[str, Any]) -> str:
    return json.dumps([[[message.role, message.content] for message in messages], dict(parameters)], sort_keys=True)
