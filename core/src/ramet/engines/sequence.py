"""A request with its progress, and the stop strings that may end it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from ramet.engines.protocol import Completion, FinishReason, FirstReport, Request
from ramet.models.encoder import Encoder

Tokens: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]  # [T]
SLACK = 16  # tokens without text by themselves that a stop string may contain


class StopStrings:
    """The stop strings of a request: looked for in the text of the newly sampled tokens only, across token borders.

    Decoding after every token would cost more than the forward pass of a small model. A token can complete a stop
    string only if its own text has the string's last character, so only such tokens have the text up to them decoded.
    Instances are shared by requests with the same strings: they only remember what single tokens can end.
    """

    def __init__(self, strings: tuple[str, ...], encoder: Encoder) -> None:
        self.strings = strings
        self._encoder = encoder
        self._last = {text[-1] for text in strings}
        self._unclear = any(char.isspace() or not char.isascii() for char in self._last)
        self._window = max(len(text.encode()) for text in strings) + SLACK
        self._may_end: dict[int, bool] = {}

    def found(self, sampled: Sequence[int]) -> str | None:
        """The stop string that the last of these tokens completed: the one that ends first, the longest of those."""
        token = sampled[-1]
        may_end = self._may_end.get(token)
        if may_end is None:
            may_end = self._may_end[token] = self._can_end(token)
        if not may_end:
            return None
        text = self._encoder.decode(sampled[-self._window :])
        ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in self.strings if stop in text]
        return min(ends)[2] if ends else None

    def _can_end(self, token: int) -> bool:
        """Whether this token may have the last character of a stop string."""
        if self._unclear:  # a character may be spread over tokens, and decoders strip spaces from a lone token
            return True
        text = self._encoder.decode([token])
        return not text or any(char in text for char in self._last)


@dataclass(slots=True, eq=False)
class RunningSequence:
    """A request with its progress. `slot` is -1 until it has one, in engines with slots.

    An update in flight cuts a sequence: its sampled tokens become a part of its context, which is computed again.
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
    top_logprobs: list[tuple[float, ...]] = field(default_factory=list)  # at the first k tokens, if they are wanted
    reported: bool = False  # the first k tokens
    prompt: Tokens = field(init=False)
    context: Tokens = field(init=False)  # the prompt and the tokens sampled before the last cut
    stop_ids: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = self.context = np.frombuffer(self.request.token_ids, dtype=np.int32)
        self.stop_ids = frozenset(self.request.sampling.stop_token_ids)

    @property
    def wants_top(self) -> bool:
        """Whether the log-probabilities of the most likely tokens are wanted at the next token."""
        return len(self.top_logprobs) < self.request.first_tokens and self.request.top_logprobs > 0

    def append(self, token: int) -> tuple[FinishReason, str | None] | None:
        """Take a sampled token. Returns why the request ended, and the stop string that ended it; None: it
        continues."""
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
        """Cut the sequence: tokens since the last cut are of this version, those that follow of other weights."""
        self.versions = self.policy_versions(version)
        self.context = np.concatenate((self.prompt, np.array(self.sampled, dtype=np.int32)))

    def policy_versions(self, version: int) -> array[int]:
        """One per sampled token, if this version sampled since the last cut."""
        return self.versions + array("i", [version]) * (len(self.sampled) - len(self.versions))

    def first_report(self) -> FirstReport:
        """Report the first k entropies, or all if there are fewer tokens. They must have been read."""
        k = self.request.first_tokens
        return FirstReport(request=self.request.id, entropies=tuple(self.entropies[:k]))

    def completion(self, finish: FinishReason, stop: str | None, version: int) -> Completion:
        """Sampled tokens and numbers, if this version sampled since the last cut. All numbers must have been read."""
        return Completion(
            token_ids=array("i", self.sampled),
            logprobs=self.logprobs,
            entropies=self.entropies,
            finish=finish,
            stop=stop,
            policy_versions=self.policy_versions(version),
            prompt_tokens=len(self.prompt),
            cached_tokens=self.cached,
            top_logprobs=tuple(self.top_logprobs),
        )
