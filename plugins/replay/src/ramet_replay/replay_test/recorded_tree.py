"""The branch policy that repeats recorded groups: roots at once, forks where and in the order that they were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from ramet.rollout.keys import path_of
from ramet.types import (
    BranchAction,
    BranchEvent,
    Done,
    Fork,
    GroupView,
    Idle,
    Need,
    Rollout,
    RolloutView,
    Start,
    StartRoots,
)


class RecordedTree:
    """A fork starts as soon as its turn has begun, or ended where it begins inside; without its turn it is left out."""

    needs = frozenset({Need.EARLIER_TURNS})

    def __init__(self, groups: Mapping[int, Sequence[Rollout]]) -> None:
        """`groups`: the recorded rollouts of a task, by the `id()` of its object."""
        self._groups = groups

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        recorded = self._groups[id(group.task)]
        if isinstance(event, Start):
            return [StartRoots(n=1 + max(path_of(rollout.id)[0] for rollout in recorded))]
        if isinstance(event, Idle):
            return [Done()]
        parent: str = getattr(event, "rollout", "")
        n_started = sum(view.parent == parent for view in group.rollouts)
        forks = sorted((r for r in recorded if r.parent == parent), key=lambda r: path_of(r.id))
        actions: list[BranchAction] = []
        for fork in forks[n_started:]:
            if not _can_start(fork, group.rollout(parent)):
                break
            actions.append(Fork(rollout=parent, turn=fork.fork_turn or 0, token=fork.fork_token))
        return actions


def _can_start(fork: Rollout, parent: RolloutView) -> bool:
    turn = fork.fork_turn or 0
    if turn >= len(parent.turns):
        return False
    return not fork.fork_token or (parent.turns[turn].ended and fork.fork_token < parent.turns[turn].n_tokens)
