"""The observer of rollouts while they run: `ramet play` prints its events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ramet.types import Generation, Message, Segment, ToolCall, ToolRecord


class RolloutObserver(Protocol):
    """Receives what happens in rollouts as it happens, in the engine's event loop. Must return at once and raise
    nothing.

    `rollout` is the rollout's id in its group, its branch path; turns count from 0.
    """

    def began(self, rollout: str, prompt: Segment) -> None:
        """A rollout starts from the prompt; for forks it is not called."""
        ...

    def sampled(self, rollout: str, turn: int, generation: Generation, n_tokens: int, seconds: float) -> None:
        """The turn's generation is complete, after so many seconds in the engine."""
        ...

    def calling(self, rollout: str, call: ToolCall) -> None:
        """A tool call begins; `call.turn` says in which turn."""
        ...

    def called(self, rollout: str, record: ToolRecord) -> None:
        """Note that the call is over, whatever came of it."""
        ...

    def rendered(self, rollout: str, messages: Sequence[Message]) -> None:
        """The rollout step had the chat template render these messages, to insert them."""
        ...

    def inserted(self, rollout: str, segment: Segment) -> None:
        """Note what the rollout step made of the results, or an environment of its first state, and inserted."""
        ...
