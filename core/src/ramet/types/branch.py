"""Branching: what happened, what is known of the group, and what to start.

A `BranchPolicy` is pure: the same event, view and random state give the same answer. The core enforces the budget,
keeps the tokens and starts the rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeAlias

from ramet.types.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The group begins; nothing runs yet. Answer with `StartRoots`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokens:
    """The first k sampled tokens of a turn are there (fewer if the turn is shorter).

    Not reported for the turn that a fork begins with: its fork point was decided already.
    """

    rollout: str
    turn: int
    entropies: tuple[float, ...]  # nats, one per token, at most k


@dataclass(frozen=True, slots=True, kw_only=True)
class AfterTool:
    """A tool result was appended; the next turn, `turn`, is about to be sampled."""

    rollout: str
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A rollout ended (also when it is masked)."""

    rollout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Everything that was started has finished and budget is left."""


BranchEvent: TypeAlias = Start | FirstTokens | AfterTool | Finished | Idle


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRoots:
    """Start n rollouts from the prompt, together."""

    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Start n rollouts at the beginning of `turn` of `rollout`, that is, right behind the tool result before it."""

    rollout: str
    turn: int
    n: int = 1


BranchAction: TypeAlias = StartRoots | Fork


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """One turn as far as it is known."""

    index: int
    entropies: tuple[float, ...]  # of its first k sampled tokens; empty until they are there
    n_tokens: int  # sampled so far as reported
    ended: bool
    n_forks: int  # rollouts forked at its beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    id: str
    root: str  # the root that it descends from; a root's own id
    parent: str | None
    fork_turn: int | None
    turns: tuple[TurnView, ...]  # from turn 0; those before `fork_turn` are the parent's
    finished: bool
    valid: bool

    @property
    def n_forks(self) -> int:
        """Forks taken from this rollout."""
        own = self.fork_turn or 0
        return sum(t.n_forks for t in self.turns if t.index >= own)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """What a branch policy may know. Rollouts in order of their start."""

    task: Task
    budget: int  # M: rollouts that the group may hold in all
    budget_left: int
    rollouts: tuple[RolloutView, ...]
    vocab_size: int

    def rollout(self, id: str) -> RolloutView:
        """The rollout with this branch path. Raises KeyError."""
        for view in self.rollouts:
            if view.id == id:
                return view
        raise KeyError(id)


class BranchPolicy(Protocol):
    """Hook 2. Pure: (what happened, what is known of the group, rng) -> what to start."""

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]: ...
