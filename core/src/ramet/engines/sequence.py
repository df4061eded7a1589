"""One request on its way through a batcher, and what the batcher reports of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ramet.engines.protocol import Completion, FinishReason, FirstReport, Request
from ramet.engines.stops import StopStrings

Tokens: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]  # [T]


@dataclass(slots=True, eq=False)
class Sequence:
    """A request with its progress. `slot` is -1 until it has one, in engines with slots."""

    request: Request
    stops: StopStrings | None
    key: str  # the request's cache key, empty once that was released
    epoch: int  # number of weight updates that it waits for
    slot: int = -1
    cached: int = 0
    sampled: list[int] = field(default_factory=list)
    reported: bool = False  # the first k tokens
    prompt: Tokens = field(init=False)
    stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = np.frombuffer(self.request.token_ids, dtype=np.int32)
        self.stop_ids = frozenset(self.request.sampling.stop_token_ids)

    def append(self, token: int) -> tuple[FinishReason, str | None] | None:
        """Take a sampled token; says why the request ended, if it did."""
        self.sampled.append(token)
        if token in self.stop_ids:
            return FinishReason.END, None
        stop = self.stops.found(self.sampled) if self.stops is not None else None
        if stop is not None:
            return FinishReason.STOP, stop
        if len(self.sampled) >= self.request.sampling.max_tokens:
            return FinishReason.LENGTH, None
        return None


@dataclass(frozen=True, slots=True)
class First:
    """The first report of a request."""

    sequence: Sequence
    report: FirstReport


@dataclass(frozen=True, slots=True)
class Done:
    """A request that ended with its tokens."""

    sequence: Sequence
    completion: Completion


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that ended without tokens."""

    sequence: Sequence
    error: Exception


Event: TypeAlias = First | Done | Failed
