"""One request on its way through a batcher, and what the batcher reports of it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ramet.engines.protocol import Completion, FinishReason, FirstReport, Request
from ramet.engines.stops import StopStrings

Tokens: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]  # [T]


@dataclass(slots=True, eq=False)
class RunningSequence:
    """A request with its progress. `slot` is -1 until it has one, in engines with slots.

    An update in flight cuts a sequence: what it has sampled becomes a part of its context, which is computed again.
    """

    request: Request
    stops: StopStrings | None
    key: str  # the request's cache key, empty once that was released
    epoch: int  # number of weight updates that it waits for
    slot: int = -1
    cached: int = 0
    lost: int | None = None  # tokens that were computed before the last cut, in engines that know; None: never cut
    sampled: list[int] = field(default_factory=list)
    logprobs: array[float] = field(default_factory=lambda: array("f"))  # of sampled tokens, as far as they were read
    entropies: array[float] = field(default_factory=lambda: array("f"))
    versions: array[int] = field(default_factory=lambda: array("i"))  # of sampled tokens before the last cut
    reported: bool = False  # the first k tokens
    prompt: Tokens = field(init=False)
    context: Tokens = field(init=False)  # the prompt and what was sampled before the last cut
    stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = self.context = np.frombuffer(self.request.token_ids, dtype=np.int32)
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

    def cut(self, version: int) -> None:
        """What follows is sampled by other weights; what was sampled since the last cut is of this version."""
        self.versions = self.policy_versions(version)
        self.context = np.concatenate((self.prompt, np.array(self.sampled, dtype=np.int32)))

    def policy_versions(self, version: int) -> array[int]:
        """One per sampled token, if this version sampled since the last cut."""
        return self.versions + array("i", [version]) * (len(self.sampled) - len(self.versions))

    def first_report(self) -> FirstReport:
        """Of the first k sampled tokens, or of all if there are fewer. Their entropies must have been read."""
        k = self.request.first_tokens
        return FirstReport(request=self.request.id, entropies=tuple(self.entropies[:k]))

    def completion(self, finish: FinishReason, stop: str | None, version: int) -> Completion:
        """What it produced, if this version sampled since the last cut. All numbers must have been read."""
        return Completion(
            token_ids=array("i", self.sampled),
            logprobs=self.logprobs,
            entropies=self.entropies,
            finish=finish,
            stop=stop,
            policy_versions=self.policy_versions(version),
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached,
        )


@dataclass(frozen=True, slots=True)
class SequenceFirst:
    """The first report of a request."""

    sequence: RunningSequence
    report: FirstReport


@dataclass(frozen=True, slots=True)
class SequenceDone:
    """A request that ended with its tokens."""

    sequence: RunningSequence
    completion: Completion


@dataclass(frozen=True, slots=True)
class SequenceFailed:
    """A request that ended without tokens."""

    sequence: RunningSequence
    error: Exception


Event: TypeAlias = SequenceFirst | SequenceDone | SequenceFailed
