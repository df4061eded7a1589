"""Branching: events, a view of the group, and actions.

A `BranchPolicy` is pure: the same event, view and random state give the same answer. The core enforces the budget,
keeps the tokens and starts the rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeAlias

from ramet.types.algorithm import Need
from ramet.types.rollout import CallStatus, StopReason
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
    """A turn ended and the next one, `turn`, is about to be sampled. `calls`: the calls of the turn that ended."""

    rollout: str
    turn: int
    calls: tuple[CallView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A rollout ended (also when it is masked: `stop` is then FAULT)."""

    rollout: str
    stop: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A finished rollout was scored, once. Only for policies with `Need.REWARDS`.

    The rewards' weighted sum; None: masked or not judged. The group stays open until it is decided.
    """

    rollout: str
    reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Everything that was started has finished and budget is left."""


BranchEvent: TypeAlias = Start | FirstTokens | AfterTool | Finished | Scored | Idle


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRoots:
    """Start n rollouts from the prompt, together."""

    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Start n rollouts at the beginning of `turn` of `rollout`, that is, right after the tool result before it.

    `token` > 0: at this sampled token of the turn instead (0-based within the turn; the tokens before it are shared),
    which must have ended. `reason`: the numbers by which it was decided (`{"entropy change": 0.12}`), recorded and
    shown in the report; it has no effect.
    """

    rollout: str
    turn: int
    n: int = 1
    token: int = 0
    reason: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End a running rollout now, with `StopReason.PRUNED`. It keeps its place in the budget and is left out.

    Its record ends where its newest turn, as the policy knows it, began. It cannot be forked any more, and no
    `Finished` follows. Once the budget is used up, only policies with `Need.LATE_EVENTS` are asked.
    """

    rollout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFrom:
    """Start n rollouts from `GroupView.prefixes[prefix]`, a stored prefix of the same task; its tokens are masked.

    They are roots: nothing of them is shared with rollouts of this step but the prefix, which is not trained.
    """

    prefix: int
    n: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Leave the rest of the budget: the group ends with the running rollouts. The last of an answer's actions."""


BranchAction: TypeAlias = StartRoots | Fork | Stop | StartFrom | Done


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """One tool call as its outcome is known. `text` is not shown: policies decide by signals, not by content."""

    name: str
    status: CallStatus
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixView:
    """The beginning of a rollout of an earlier step, of the same task, up to where one of its turns begins."""

    n_tokens: int  # of the response
    turns: int
    reward: float | None  # of the rollout that it was cut from; of several that share it, of the first


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnView:
    """One turn as far as it is known."""

    index: int
    entropies: tuple[
        float, ...
    ]  # of its first k sampled tokens, empty until then; all once ended, if ENTROPY is needed
    n_tokens: int  # sampled so far as reported
    ended: bool
    n_forks: int  # rollouts forked at its beginning
    calls: tuple[CallView, ...] = ()  # made in it, in their order; once it ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    id: str
    root: str  # the root that it descends from; a root's own id
    parent: str | None
    fork_turn: int | None
    turns: tuple[TurnView, ...]  # from turn 0; those before `fork_turn` are the parent's
    finished: bool
    valid: bool
    stop: StopReason | None = None  # once finished
    reward: float | None = None  # once `Scored`
    fork_token: int = 0  # tokens of turn `fork_turn` that are the parent's
    prefix: int | None = None  # of `GroupView.prefixes`, with which it began; its turns have no entropies

    @property
    def n_forks(self) -> int:
        """Forks taken from this rollout."""
        first_own_turn = self.fork_turn or 0
        return sum(t.n_forks for t in self.turns if t.index >= first_own_turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A branch policy's view of a group. Rollouts in order of their start."""

    task: Task
    budget: int  # M: rollouts of the group, at most
    budget_left: int
    rollouts: tuple[RolloutView, ...]
    vocab_size: int
    prefixes: tuple[PrefixView, ...] = ()  # with `Need.PREFIXES`: of the task's newest group whose rewards differed

    def rollout(self, id: str) -> RolloutView:
        """The rollout with this branch path. Raises KeyError."""
        for view in self.rollouts:
            if view.id == id:
                return view
        raise KeyError(id)


class BranchPolicy(Protocol):
    """Hook 2. Pure: (event, view of the group, rng) -> actions.

    `needs`: ENTROPY to read entropies (engines without exact ones are refused before the start). REWARDS to get
    `Scored`. EARLIER_TURNS to fork stateful rollouts at turns before the newest. LATE_EVENTS to be asked also when the
    budget is used up. PREFIXES to start from stored prefixes. A policy may have a second method: `StepBudget`.
    """

    needs: frozenset[Need] = frozenset()

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]: ...


def policy_needs(policy: BranchPolicy) -> frozenset[Need]:
    """Return the policy's `needs`, which it may leave out."""
    needs: frozenset[Need] = getattr(policy, "needs", frozenset())
    return needs
