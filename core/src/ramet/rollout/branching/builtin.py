"""The built-in branch policies `none`, without forks, and `random`, the control that forks by coin.

`random` asks at the same moments as ARPO and fills the same budget, so a claim about entropy can be tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ramet.errors import ConfigError
from ramet.rollout.config import NoBranchConfig, RandomBranchConfig
from ramet.types import (
    BranchAction,
    BranchEvent,
    Done,
    Finished,
    FirstTokens,
    Fork,
    GroupView,
    Idle,
    Need,
    Start,
    StartRoots,
)


class NoBranching:
    """All rollouts start from the prompt: at once, or until the group has made so many tool calls."""

    needs: frozenset[Need] = frozenset()

    def __init__(self, config: NoBranchConfig | None = None) -> None:
        self.calls = None if config is None else config.calls

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if self.calls is not None:
            return self._by_calls(event, group, self.calls)
        return [StartRoots(n=group.budget_left)] if isinstance(event, Start | Idle) else []

    def _by_calls(self, event: BranchEvent, group: GroupView, calls: int) -> Sequence[BranchAction]:
        """Half of the budget at once; then one for each that has finished, while too few calls are expected of all."""
        match event:
            case Start():
                return [StartRoots(n=initial_rollouts(None, group.budget))]
            case Finished() if group.budget_left and _expected_calls(group) < calls:
                return [StartRoots(n=1)]
            case Idle():
                return [StartRoots(n=1)] if _expected_calls(group) < calls else [Done()]
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
            case FirstTokens(turn=turn) if turn >= 1 and group.budget_left:
                draw = rng.random()
                reason = {"probability": self.config.probability, "draw": draw}
                return [Fork(rollout=event.rollout, turn=turn, reason=reason)] if draw < reason["probability"] else []
            case Idle():
                return [StartRoots(n=group.budget_left)]
        return []


def _expected_calls(group: GroupView) -> float:
    """Return the calls of all started rollouts if each makes the mean of those that finished. One must have."""
    calls = [sum(len(turn.calls) for turn in rollout.turns) for rollout in group.rollouts if rollout.finished]
    return sum(calls) / len(calls) * len(group.rollouts)


def initial_rollouts(configured: int | None, budget: int) -> int:
    """Rollouts that start from the prompt at once: half the budget, but at least one, if none are chosen.

    Raises `ConfigError` for more than the budget.
    """
    if configured is None:
        return min(budget, max(1, budget // 2))
    if configured > budget:
        raise ConfigError(
            f"branch_policy.params.initial_rollouts: {configured} is more than rollout.group_size, {budget}"
        )
    return configured
