"""Rewards that a session gets while it runs: of the rollout, of turns, and of sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ramet.plugins.output_checks import FLOAT32_MAX
from ramet.rollout.gateway.messages import BadRequest
from ramet.rollout.gateway.threads import SessionTurn
from ramet.types import SegmentKind


@dataclass(slots=True, eq=False)
class SessionRewards:
    """Sums of what was given. A fork has its own: its agent runs again, and gives them again."""

    rollout: float | None = None  # None: nothing was given
    turns: dict[int, float] = field(default_factory=dict)  # by the turn's number
    tokens: dict[int, dict[int, float]] = field(default_factory=dict)  # by turn: by sampled token

    def add(self, value: float, turn: SessionTurn | None = None, token: int | None = None) -> float:
        """Add a reward of the rollout, of a turn, or of the k-th token that was sampled in it; returns the sum.

        Raises `BadRequest` for a sum that is not finite as the float32 that it becomes.
        """
        if turn is None:
            total = self.rollout = _sum(self.rollout, value)
        elif token is None:
            total = self.turns[turn.number] = _sum(self.turns.get(turn.number), value)
        else:
            of_turn = self.tokens.setdefault(turn.number, {})
            total = of_turn[token] = _sum(of_turn.get(token), value)
        return total

    def by_turn(self, n_turns: int, at_end: float | None = None) -> list[float | None]:
        """The rewards of turns, None where there is none. The rollout's, and what its end gave, are in the last."""
        rewards = [self.turns.get(number) for number in range(n_turns)]
        given = [reward for reward in (rewards[-1], self.rollout, at_end) if reward is not None]
        return [*rewards[:-1], sum(given) if given else None]

    def by_position(self, turns: Sequence[SessionTurn]) -> dict[int, float]:
        """The rewards of tokens by response position: the place in all turns' tokens, the prompt left out."""
        positions, start = dict[int, float](), 0
        for turn in turns:
            inserted = [segment for segment in turn.segments if not segment.is_sampled]
            sampled_at = start + sum(len(s) for s in inserted if s.kind is not SegmentKind.PROMPT)
            for token, reward in self.tokens.get(turn.number, {}).items():
                positions[sampled_at + token] = reward
            start = sampled_at + turn.n_sampled
        return positions


def _sum(before: float | None, value: float) -> float:
    total = value if before is None else before + value
    if not abs(total) <= FLOAT32_MAX:
        raise BadRequest(f"reward: the sum would be {total!r}, which is not finite as float32", field="reward")
    return total
