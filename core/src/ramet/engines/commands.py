"""What the asyncio side tells the thread that owns an engine's batcher. Order is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from ramet.engines.protocol import Completion, FirstReport, Request


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """Where the events of one request go. Futures and callbacks are touched on their own loop only."""

    request: Request
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Completion]
    on_first: Callable[[FirstReport], None] | None


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """New weights. `in_flight` ones wait for no request."""

    weights: Sequence[tuple[str, Tensor]]
    version: int
    in_flight: bool
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


@dataclass(frozen=True, slots=True, eq=False)
class Pause:
    """Compute nothing until `Resume`; the future is done when that is so."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class Resume:
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Do:
    """Call this in the thread, between two steps; the future is done behind it."""

    work: Callable[[], object]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Release:
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Close:
    pass


Command: TypeAlias = Ticket | Update | Pause | Resume | Do | Abort | Release | Close
