"""The branch policy `tree_grpo`: trees that grow in rounds from random turns (Ji et al., arXiv 2509.21240).

M rollouts start from the prompt. Whenever all of a group's rollouts have finished and budget is left, every tree is
expanded at N of its turns. They are drawn at random from all turns but the last ones. The fork begins after the tool
result of the drawn turn. So a group with M trees and L rounds has M (1 + L N) rollouts; the budget says L, and the last
round may be smaller. A tree of a single turn has nothing to expand: its share starts from the prompt, as a new tree.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

from ramet.errors import ConfigError
from ramet.rollout.config import TreeExpansionConfig
from ramet.types import BranchAction, BranchEvent, Fork, GroupView, Idle, Need, RolloutView, Start, StartRoots


class TreeExpansion:
    """Masked rollouts are not expanded."""

    needs: frozenset[Need] = frozenset({Need.EARLIER_TURNS})

    def __init__(self, config: TreeExpansionConfig) -> None:
        self.config = config

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        match event:
            case Start():
                return [StartRoots(n=self._trees(group.budget))]
            case Idle():
                return self._expand(group, rng)
        return []

    def _trees(self, budget: int) -> int:
        if self.config.trees is None:
            return min(budget, max(1, budget // (1 + self.config.expansions)))
        if self.config.trees > budget:
            raise ConfigError(
                f"branch_policy.params.trees: {self.config.trees} is more than rollout.group_size, {budget}"
            )
        return self.config.trees

    def _expand(self, group: GroupView, rng: Random) -> list[BranchAction]:
        """One round, the trees in turn, as far as the budget goes."""
        trees: dict[str, list[Fork]] = {}
        for view in group.rollouts:
            trees.setdefault(view.root, []).extend(_expandable(view))
        drawn = [_draw(forks, self.config.expansions, rng) for forks in trees.values()]
        ordered: list[BranchAction] = [fork for forks in zip(*drawn, strict=True) for fork in forks]
        return list(itertools.islice(ordered, group.budget_left)) or [StartRoots(n=group.budget_left)]


def _expandable(view: RolloutView) -> list[Fork]:
    """The forks after each of a rollout's own turns but the last. Shared turns belong to its parent."""
    if not view.valid:
        return []
    return [Fork(rollout=view.id, turn=turn) for turn in range((view.fork_turn or 0) + 1, len(view.turns))]


def _draw(forks: Sequence[Fork], n: int, rng: Random) -> Sequence[BranchAction]:
    """n of them, each once as long as there are enough."""
    if not forks:
        return [StartRoots(n=1)] * n
    return rng.sample(forks, n) if len(forks) >= n else rng.choices(forks, k=n)
