"""The branch policy `stored_prefix`: a group continues from where an earlier one of its task could turn out either way.

With the chosen probability all rollouts of a group start from one stored prefix, drawn evenly from the task's newest
group whose rewards differed. Otherwise, and while nothing is stored of the task, they start from the prompt. A group
never mixes the two: an estimator compares the rollouts of a group, and different beginnings would count as differences
of the trained part.

Prefix Sampling (arXiv 2605.05112) starts rollouts from stored prefixes; the way of drawing one is Ramet's.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ramet.rollout.config import StoredPrefixConfig
from ramet.types import BranchAction, BranchEvent, GroupView, Idle, Need, Start, StartFrom, StartRoots


class StoredPrefixes:
    """All of the budget starts at once."""

    needs: frozenset[Need] = frozenset({Need.PREFIXES})

    def __init__(self, config: StoredPrefixConfig) -> None:
        self.config = config

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if not isinstance(event, Start | Idle):
            return []
        if isinstance(event, Start) and group.prefixes and rng.random() < self.config.probability:
            return [StartFrom(prefix=rng.randrange(len(group.prefixes)), n=group.budget_left)]
        return [StartRoots(n=group.budget_left)]
