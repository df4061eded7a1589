"""What is reported about branching: where the entropy rose, who was forked, and how alike a group's rollouts are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from ramet.types import Group, Rollout, Segment

QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9}


class BranchMetrics:
    """Collects groups; `summary` is of all since the start. `first_tokens`: k, tokens whose entropies are compared."""

    def __init__(self, first_tokens: int) -> None:
        self._k = first_tokens
        self._changes: list[float] = []  # of each turn after a tool result: mean over k tokens, nats
        self._effective_roots: list[float] = []
        self._most_forks: list[int] = []
        self._lengths: dict[bool, list[int]] = {True: [], False: []}  # response tokens, by whether it was forked

    def add(self, group: Group) -> None:
        if not group.rollouts:
            return
        sizes = Counter(_root(rollout) for rollout in group.rollouts)
        self._effective_roots.append(len(group.rollouts) ** 2 / sum(n * n for n in sizes.values()))
        self._most_forks.append(max(sizes.values()) - 1)
        parents = {rollout.parent for rollout in group.rollouts}
        for rollout in group.rollouts:
            self._lengths[rollout.id in parents].append(rollout.n_response_tokens)
        self._changes.extend(_changes(group.rollouts, self._k))

    def summary(self) -> dict[str, float]:
        """Empty where there were no groups; no entropy changes where engines report none or no tool was called."""
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


def turns_of(rollouts: Iterable[Rollout]) -> Iterator[tuple[Rollout, list[Segment]]]:
    """The sampled segments of each turn once, however many rollouts share it, with one that holds it.

    Updates in flight and forks at tokens cut turns into several segments.
    """
    found: dict[int, tuple[Rollout, list[Segment]]] = {}
    for rollout in rollouts:
        sampled = [segment for segment in rollout.segments if segment.is_sampled]
        for _, turn in groupby(sampled, lambda segment: segment.turn):
            segments = list(turn)
            found.setdefault(id(segments[-1]), (rollout, segments))
    yield from found.values()


def first_entropies(segments: Sequence[Segment], k: int) -> list[float]:
    """Of the first k tokens of a turn, in nats; empty where the engine reports none."""
    return [entropy for segment in segments for entropy in segment.entropies or ()][:k]


def _root(rollout: Rollout) -> str:
    return rollout.id.partition(".")[0]


def _changes(rollouts: Sequence[Rollout], k: int) -> Iterator[float]:
    """Of each turn after a tool result against the first turn of its root, over the positions that both have."""
    turns = [(_root(rollout), segments) for rollout, segments in turns_of(rollouts)]
    first: Mapping[str, list[float]] = {
        root: first_entropies(segments, k) for root, segments in reversed(turns) if segments[0].turn == 0
    }
    for root, segments in turns:
        pairs = list(zip(first_entropies(segments, k), first.get(root, ()), strict=False))
        if segments[0].turn > 0 and pairs:
            yield sum(now - before for now, before in pairs) / len(pairs)
