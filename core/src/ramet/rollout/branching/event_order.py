"""In which order a group's branch events are decided: as they arrive, or in logical order.

Which fork gets the last of the budget must not depend on a tool's mood if a run is to be repeatable. `LogicalOrder`
therefore decides events by (turn, phase, branch path): an event is held back until no live rollout can still produce
an earlier one. Each rollout's own events come in rising order, so its last one bounds its next one from below; the
smallest event whose bound nobody else can undercut is next. Generation never waits here, only forks do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from ramet.rollout.keys import BranchPath
from ramet.types import CallView, StopReason


class Phase(IntEnum):
    """What can happen within a turn, in its order."""

    BEGIN = 0  # the tool result before the turn was appended
    FIRST = 1  # the first k tokens of the turn are there
    END = 2  # the rollout ended with this turn


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

    @property
    def key(self) -> tuple[int, int, BranchPath]:
        return self.turn, self.phase, self.path


class EventOrder(Protocol):
    """Takes notes as they happen and gives them out in the order in which they are to be decided."""

    def start(self, path: BranchPath, turn: int) -> None:
        """A rollout begins with this turn."""
        ...

    def push(self, note: RolloutEvent) -> None: ...

    def pop(self) -> RolloutEvent | None:
        """The next note, or None while it cannot be known."""
        ...


class ArrivalOrder:
    """First come, first served."""

    def __init__(self) -> None:
        self._notes: deque[RolloutEvent] = deque()

    def start(self, path: BranchPath, turn: int) -> None:
        """Nothing to know: nobody waits for anybody."""

    def push(self, note: RolloutEvent) -> None:
        self._notes.append(note)

    def pop(self) -> RolloutEvent | None:
        return self._notes.popleft() if self._notes else None


@dataclass(slots=True)
class _PathQueue:
    """One live rollout's notes. `bound` is below everything that it may still report."""

    bound: tuple[int, int, BranchPath]
    notes: deque[RolloutEvent] = field(default_factory=deque)

    @property
    def next_key(self) -> tuple[int, int, BranchPath]:
        return self.notes[0].key if self.notes else self.bound


class LogicalOrder:
    """By (turn, phase, branch path), whatever the order of arrival."""

    def __init__(self) -> None:
        self._lines: dict[BranchPath, _PathQueue] = {}

    def start(self, path: BranchPath, turn: int) -> None:
        self._lines[path] = _PathQueue((turn, Phase.FIRST, path))

    def push(self, note: RolloutEvent) -> None:
        self._lines[note.path].notes.append(note)

    def pop(self) -> RolloutEvent | None:
        if not self._lines:
            return None
        line = min(self._lines.values(), key=lambda one: one.next_key)
        if not line.notes:
            return None
        note = line.notes.popleft()
        if note.phase is Phase.END:
            del self._lines[note.path]
        else:
            line.bound = (note.turn, note.phase + 1, note.path)
        return note
