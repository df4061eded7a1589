"""Metrics of branching: where the entropy rose, who was forked, and how alike a group's rollouts are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import sub
from typing import NamedTuple

from ramet.types import Group, Origin, Rollout, Segment

QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


class FirstEntropies(NamedTuple):
    """The entropies of the first tokens of one turn, in nats; none where the engine reports none."""

    root: str
    turn: int
    values: list[float]


class BranchMetrics:
    """Collects groups; `summary` is of all since the start."""

    def __init__(self) -> None:
        self._changes: list[float] = []  # of each turn after a tool result: mean over k tokens, nats
        self._effective_roots: list[float] = []
        self._most_forks: list[int] = []
        self._lengths: dict[bool, list[int]] = {True: [], False: []}  # response tokens, by whether it was forked

    def add(self, group: Group, lengths: Sequence[int], begun: Sequence[FirstEntropies]) -> None:
        """`lengths`: of its rollouts' responses, in tokens; `begun`: `first_entropies` of them."""
        if not group.rollouts:
            return
        sizes = Counter(_root(rollout) for rollout in group.rollouts)
        self._effective_roots.append(len(group.rollouts) ** 2 / sum(n * n for n in sizes.values()))
        self._most_forks.append(max(sizes.values()) - 1)
        parents = {rollout.parent for rollout in group.rollouts}
        for rollout, length in zip(group.rollouts, lengths, strict=True):
            self._lengths[rollout.id in parents].append(length)
        self._changes.extend(_changes(begun))

    def add_all(self, other: BranchMetrics) -> None:
        """Add the groups of `other`."""
        self._changes += other._changes
        self._effective_roots += other._effective_roots
        self._most_forks += other._most_forks
        for forked, lengths in other._lengths.items():
            self._lengths[forked] += lengths

    def summary(self) -> dict[str, float]:
        """Metrics; empty without groups; no entropy changes where engines report none or no tool was called."""
        metrics: dict[str, float] = {}
        if self._effective_roots:
            metrics["rollout/effective_roots"] = sum(self._effective_roots) / len(self._effective_roots)
            metrics["rollout/forks_of_one_root_max"] = float(max(self._most_forks))
        for forked, lengths in self._lengths.items():
            if lengths and self._lengths[True]:
                name = "forked" if forked else "unforked"
                metrics[f"rollout/response_tokens_{name}_mean"] = sum(lengths) / len(lengths)
        if self._changes:
            ordered = sorted(self._changes)
            for name, share in QUANTILES.items():
                metrics[f"rollout/entropy_change_{name}"] = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
            metrics["rollout/entropy_rose_share"] = sum(change > 0 for change in ordered) / len(ordered)
        return metrics


def first_entropies(rollouts: Iterable[Rollout], k: int) -> list[FirstEntropies]:
    """Return the entropies of the first k tokens of each turn; a turn that several rollouts share counts once."""
    return [
        FirstEntropies(_root(rollout), segments[0].turn, first_of_turn(segments, k))
        for rollout, segments in turns_of(rollouts)
    ]


def turns_of(rollouts: Iterable[Rollout]) -> Iterable[tuple[Rollout, list[Segment]]]:
    """The sampled segments of each turn once, however many rollouts share it, with one of these rollouts.

    Updates in flight and forks at tokens cut turns into several segments.
    """
    turns: dict[int, tuple[Rollout, list[Segment]]] = {}
    for rollout in rollouts:
        turn: list[Segment] = []
        for segment in rollout.segments:
            if segment.origin is not Origin.SAMPLED:
                continue
            if turn and turn[-1].turn != segment.turn:
                turns.setdefault(id(turn[-1]), (rollout, turn))
                turn = []
            turn.append(segment)
        if turn:
            turns.setdefault(id(turn[-1]), (rollout, turn))
    return turns.values()


def first_of_turn(segments: Iterable[Segment], k: int) -> list[float]:
    """The entropies of the first k tokens that these sampled segments have, in nats."""
    entropies: list[float] = []
    for segment in segments:
        if segment.entropies is not None and len(entropies) < k:
            entropies.extend(segment.entropies[: k - len(entropies)])
    return entropies


def _root(rollout: Rollout) -> str:
    return rollout.id.partition(".")[0]


def _changes(begun: Sequence[FirstEntropies]) -> Iterator[float]:
    """Yield the mean change of each later turn against its root's first turn, over the positions that both have."""
    first: Mapping[str, list[float]] = {entry.root: entry.values for entry in reversed(begun) if entry.turn == 0}
    for entry in begun:
        before = first.get(entry.root, ())
        n = min(len(entry.values), len(before))
        if entry.turn > 0 and n:
            yield sum(map(sub, entry.values, before)) / n  # ends with the shorter of the two
