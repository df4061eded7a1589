"""A row of an SFT file: a conversation of exchanges, each of a user's message and the reply to it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ramet.types import ToolSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCall:
    """A call that a row has apart from the text, as OpenAI's `tool_calls`."""

    name: str
    arguments: str  # a JSON object


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Text of an assistant's turn."""

    text: str
    calls: tuple[WrittenCall, ...] = ()
    trained: bool = True  # False: it is there to be read, as what a row gives no weight

    @property
    def calls_as_dicts(self) -> list[dict[str, Any]]:
        """Return the calls as chat templates read them."""
        return [{"name": call.name, "arguments": json.loads(call.arguments)} for call in self.calls]


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A tool result that was a separate turn, without any wrapper."""

    text: str


Piece: TypeAlias = Written | Returned


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of the policy; `returned` are the texts of the results."""

    written: Written
    returned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    user: str
    reply: tuple[Piece, ...]  # begins and ends with `Written`

    @property
    def turns(self) -> list[Turn]:
        """A written part with the results that follow it."""
        turns: list[Turn] = []
        for piece in self.reply:
            if isinstance(piece, Written):
                turns.append(Turn(written=piece))
            else:
                turns[-1] = replace(turns[-1], returned=(*turns[-1].returned, piece.text))
        return turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """One row. `row` counts from 1, as editors do."""

    file: str
    row: int
    system: str | None
    exchanges: tuple[Exchange, ...]
    tools: tuple[ToolSchema, ...] | None = None  # that the row brings; None: it has no such column

    @property
    def where(self) -> str:
        return f"{self.file}, row {self.row}"
