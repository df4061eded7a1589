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
        self._newest: Sequence[Any] = ()

    def add(self, body: Mapping[str, Any], asked: Sequence[Any]) -> None:
        """Keep a response's body, and the conversation that it replied to.

        Clients send their conversation again and again. Where items are those that came before, they are kept once.
        """
        before = [*self._newest[: len(asked)], *[None] * (len(asked) - len(self._newest))]
        items = [old if old == item else item for old, item in zip(before, asked, strict=True)]
        self._newest = [*items, *body["output"]]
        self._responses[body["id"]] = KeptResponse(body=body, items=self._newest)
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
