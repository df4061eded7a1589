"""The built-in branch policies: no forks, and the control that forks by coin.

`random` asks at the same moments as ARPO and fills the same budget, so a claim about entropy can be tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ramet.errors import ConfigError
from ramet.rollout.config import RandomBranchConfig
from ramet.types import BranchAction, BranchEvent, FirstTokens, Fork, GroupView, Idle, Need, Start, StartRoots


class NoBranching:
    """All rollouts start from the prompt, at once."""

    needs: frozenset[Need] = frozenset()

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if isinstance(event, Start | Idle):
            return [StartRoots(n=group.budget_left)]
        return []


class RandomBranching:
    """Some roots at once, a fork after each tool result by a coin, and the rest from the prompt."""

    needs: frozenset[Need] = frozenset()

    def __init__(self, config: RandomBranchConfig) -> None:
        self.config = config

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        match event:
            case Start():
                return [StartRoots(n=initial_rollouts(self.config.initial_rollouts, group.budget))]
            case FirstTokens(turn=turn) if turn >= 1 and group.budget_left and rng.random() < self.config.probability:
                return [Fork(rollout=event.rollout, turn=turn)]
            case Idle():
                return [StartRoots(n=group.budget_left)]
        return []


def initial_rollouts(chosen: int | None, budget: int) -> int:
    """Rollouts that start from the prompt at once: half the budget, but at least one, if none are chosen.

    Raises `ConfigError` for more than the budget.
    """
    if chosen is None:
        return min(budget, max(1, budget // 2))
    if chosen > budget:
        raise ConfigError(f"branch_policy.params.initial_rollouts: {chosen} is more than rollout.group_size, {budget}")
    return chosen
