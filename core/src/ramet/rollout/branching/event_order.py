"""Order in which a group's branch events are decided: as they arrive, or in logical order.

If a run is to be repeatable, which fork gets the last of the budget must not depend on how fast a tool is.
`LogicalOrder` therefore decides events by (turn, phase, branch path): an event is held back until no live rollout can
still produce an earlier one. Each rollout's own events come in rising order, so its last one bounds its next one from
below; the smallest event that no other rollout's bound is below is next. Generation never waits here, only forks do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from ramet.rollout.branching.events import Phase, RolloutEvent
from ramet.rollout.keys import BranchPath


class EventOrder(Protocol):
    """Takes events as they happen and gives them out in the order in which they are to be decided."""

    def start(self, path: BranchPath, turn: int) -> None:
        """A rollout begins with this turn."""
        ...

    def push(self, event: RolloutEvent) -> None: ...

    def drop(self, path: BranchPath) -> None:
        """A rollout was stopped: nothing more comes from it, and its reported events are not decided."""
        ...

    def pop(self) -> RolloutEvent | None:
        """The next event to decide, or None while it cannot be known which one that is."""
        ...


class ArrivalOrder:
    """First come, first served."""

    def __init__(self) -> None:
        self._events: deque[RolloutEvent] = deque()

    def start(self, path: BranchPath, turn: int) -> None:
        """Do nothing: no rollout waits for another."""

    def push(self, event: RolloutEvent) -> None:
        self._events.append(event)

    def drop(self, path: BranchPath) -> None:
        self._events = deque(event for event in self._events if event.path != path)

    def pop(self) -> RolloutEvent | None:
        return self._events.popleft() if self._events else None


@dataclass(slots=True)
class _PathQueue:
    """One live rollout's events. `bound` is below everything that it may still report."""

    bound: tuple[int, int, BranchPath]
    events: deque[RolloutEvent] = field(default_factory=deque)

    @property
    def next_key(self) -> tuple[int, int, BranchPath]:
        return self.events[0].key if self.events else self.bound


class LogicalOrder:
    """Order by (turn, phase, branch path), whatever arrives first. `last`: the phase of a rollout's last event."""

    def __init__(self, last: Phase = Phase.END) -> None:
        self._last = last
        self._queues: dict[BranchPath, _PathQueue] = {}

    def start(self, path: BranchPath, turn: int) -> None:
        self._queues[path] = _PathQueue((turn, Phase.FIRST, path))

    def push(self, event: RolloutEvent) -> None:
        self._queues[event.path].events.append(event)

    def drop(self, path: BranchPath) -> None:
        del self._queues[path]

    def pop(self) -> RolloutEvent | None:
        if not self._queues:
            return None
        queue = min(self._queues.values(), key=lambda candidate: candidate.next_key)
        if not queue.events:
            return None
        event = queue.events.popleft()
        if event.phase is self._last:
            del self._queues[event.path]
        else:
            queue.bound = (event.turn, event.phase + 1, event.path)
        return event
