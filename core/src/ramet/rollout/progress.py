"""How far rollouts are, for observers: counted while they run, read from other threads without a lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProgress:
    """Progress of the calls of `run` that have not returned yet."""

    total: int = 0  # rollouts, forks included
    done: int = 0
    forks: int = 0  # begun so far
    in_tools: int = 0  # rollouts that wait for a tool now
    turns: int = 0  # that ended
    tokens: int = 0  # sampled in turns that ended, since the worker was started

    def __add__(self, other: RolloutProgress) -> RolloutProgress:
        return RolloutProgress(
            total=self.total + other.total,
            done=self.done + other.done,
            forks=self.forks + other.forks,
            in_tools=self.in_tools + other.in_tools,
            turns=self.turns + other.turns,
            tokens=self.tokens + other.tokens,
        )


@dataclass(slots=True, eq=False)
class RunCounts:
    """Counts of one call of `run`, made by the event loop."""

    total: int = 0
    done: int = 0
    forks: int = 0
    in_tools: int = 0
    turns: int = 0
    tokens: int = 0

    def snapshot(self) -> RolloutProgress:
        return RolloutProgress(
            total=self.total,
            done=self.done,
            forks=self.forks,
            in_tools=self.in_tools,
            turns=self.turns,
            tokens=self.tokens,
        )


class ProgressCounter:
    """The calls that are running."""

    def __init__(self) -> None:
        self._running: list[RunCounts] = []
        self._tokens = 0  # of the calls that have returned

    @contextmanager
    def counting(self, total: int) -> Iterator[RunCounts]:
        """Count the rollouts of a call for `total`."""
        counts = RunCounts(total=total)
        self._running.append(counts)
        try:
            yield counts
        finally:
            self._tokens += counts.tokens
            self._running.remove(counts)

    def progress(self) -> RolloutProgress:
        return summed(counts.snapshot() for counts in list(self._running)) + RolloutProgress(tokens=self._tokens)


def summed(parts: Iterable[RolloutProgress]) -> RolloutProgress:
    return sum(parts, start=RolloutProgress())
