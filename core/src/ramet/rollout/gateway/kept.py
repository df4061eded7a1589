"""Replies of `/v1/responses` that a session keeps, for requests that refer to them by an id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ramet.rollout.gateway.messages import BadRequest

Item: TypeAlias = Mapping[str, Any]  # of a conversation, as the dialect writes it


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResponse:
    """A reply and what it replied to."""

    body: Mapping[str, Any]  # as it was sent
    items: Sequence[Any]  # the conversation up to the end of the reply


class KeptResponses:
    """The kept replies of one session."""

    def __init__(self) -> None:
        self._responses: dict[str, KeptResponse] = {}
        self._items: dict[str, Item] = {}
        self._newest = KeptResponse(body={}, items=())

    def add(self, body: Mapping[str, Any], asked: Sequence[Any]) -> None:
        """Keep a response's body, and the conversation that it replied to.

        Clients send conversation and tools again and again: what equals the response before is shared.
        """
        old = self._newest
        before = [*old.items[: len(asked)], *[None] * (len(asked) - len(old.items))]
        items = [known if known == item else item for known, item in zip(before, asked, strict=True)]
        same = {name: old.body.get(name) for name in ("instructions", "tools") if old.body.get(name) == body[name]}
        self._newest = KeptResponse(body={**body, **same}, items=[*items, *body["output"]])
        self._responses[body["id"]] = self._newest
        self._items.update({item["id"]: item for item in body["output"]})

    def response(self, id: Any, field: str | None, code: str | None = None) -> KeptResponse:
        """Raises `BadRequest` for what this session has not replied; `field` is where the id was given."""
        if not isinstance(id, str) or id not in self._responses:
            raise BadRequest(f"this session has no response {id!r:.80}", status=404, field=field, code=code)
        return self._responses[id]

    def item(self, id: Any, field: str) -> Item:
        """The part of a reply that has this id. Raises `BadRequest`."""
        if not isinstance(id, str) or id not in self._items:
            raise BadRequest(f"{field}: no reply of this session has an item {id!r:.80}", status=404, field=field)
        return self._items[id]
