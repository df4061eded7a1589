"""Events of one rollout, as the scheduler notes them, and as its branch policy receives them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from ramet.rollout.keys import BranchPath
from ramet.rollout.tree import LiveRollout
from ramet.types import AfterTool, BranchEvent, CallView, Finished, FirstTokens, Scored, SegmentKind, StopReason


class Phase(IntEnum):
    """Events within a turn, in their order."""

    BEGIN = 0  # the tool result before the turn was appended
    FIRST = 1  # the first k tokens of the turn are there
    END = 2  # the rollout ended with this turn
    SCORED = 3  # it was scored, for policies with `Need.REWARDS`


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """One thing that happened to one rollout."""

    path: BranchPath
    phase: Phase
    turn: int
    entropies: tuple[float, ...] = ()  # FIRST: of the first tokens; BEGIN and END: of the turn that is over
    n_tokens: int = 0  # BEGIN and END: sampled in the turn that is over
    calls: tuple[CallView, ...] = ()  # BEGIN and END: made in the turn that is over, in their order
    stop: StopReason | None = None  # END: why; FAULT if it is masked
    reward: float | None = None  # SCORED: None if it is masked or was not judged

    @property
    def key(self) -> tuple[int, int, BranchPath]:
        return self.turn, self.phase, self.path


def turn_ended(live: LiveRollout, turn: int, phase: Phase, *, summary: bool, entropies: bool) -> RolloutEvent:
    """A turn is over: the next one begins, or the rollout ended.

    `summary` False leaves out the turn's content, for when no policy is asked. `entropies` False leaves out its
    entropies, which are many for a long turn.
    """
    stop = live.stop_reason if phase is Phase.END else None
    if not summary:
        return RolloutEvent(live.path, phase, live.turn, stop=stop)
    sampled = [s for s in live.segments[live.turns[turn].start :] if s.kind is SegmentKind.TURN and s.turn == turn]
    return RolloutEvent(
        live.path,
        phase,
        live.turn,
        entropies=tuple(entropy for s in sampled for entropy in s.entropies or ()) if entropies else (),
        n_tokens=sum(len(s) for s in sampled),
        calls=tuple(CallView(name=c.name, status=c.status, truncated=c.truncated) for c in live.turns[turn].calls),
        stop=stop,
    )


def branch_event(event: RolloutEvent, live: LiveRollout) -> BranchEvent | None:
    """The event that the policy receives; None where it has nothing to decide."""
    match event.phase:
        case Phase.BEGIN:
            return AfterTool(rollout=live.key.path, turn=event.turn, calls=event.calls)
        case Phase.END:
            return Finished(rollout=live.key.path, stop=live.stop_reason)
        case Phase.SCORED:
            return Scored(rollout=live.key.path, reward=event.reward)
        case Phase.FIRST if live.fork_turn != event.turn:
            return FirstTokens(rollout=live.key.path, turn=event.turn, entropies=event.entropies)
    return None
