"""Fork where the entropy rose after a tool result (arXiv 2507.19849, §3.1).

N rollouts start from the prompt. The entropies of a root's first k tokens are the baseline of the root and of all that
descend from it. When the first k tokens after a tool result are known, `change = normalize(H_t - H_initial)`; the
rollout is forked after that tool result if `alpha + beta * change > tau`, and goes on itself. Budget that is left when
everything has finished goes to whole rollouts from the prompt, all at once.

Deviations from the paper, each an option or stated in the README: the scale of the change (`normalizer`), and vectors
of different length (a turn shorter than k) are compared position by position over the shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from ramet import (
    BranchAction,
    BranchEvent,
    ConfigError,
    FirstTokens,
    Fork,
    GroupView,
    Idle,
    Need,
    Start,
    StartRoots,
)
from ramet_arpo.config import ArpoConfig, Normalizer


class Arpo:
    """The branch policy `arpo`. Draws nothing: the decision is a threshold."""

    needs = frozenset({Need.ENTROPY})

    def __init__(self, config: ArpoConfig) -> None:
        self.config = config

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        match event:
            case Start():
                return [StartRoots(n=self._initial(group.budget))]
            case FirstTokens():
                return self._after_first_tokens(event, group)
            case Idle():
                return [StartRoots(n=group.budget_left)]
        return []

    def _initial(self, budget: int) -> int:
        chosen = self.config.initial_rollouts
        if chosen is not None and chosen > budget:
            raise ConfigError(
                f"branch_policy.params.initial_rollouts: {chosen} is more than rollout.group_size, {budget}"
            )
        return min(budget, max(1, budget // 2)) if chosen is None else chosen

    def _after_first_tokens(self, event: FirstTokens, group: GroupView) -> Sequence[BranchAction]:
        if not event.entropies:
            raise ConfigError("branch_policy: arpo needs exact entropies, and this engine reports none")
        n = min(self.config.branches, group.budget_left)
        if event.turn == 0 or n == 0:
            return []
        root = group.rollout(group.rollout(event.rollout).root)
        change = normalized_change(event.entropies, root.turns[0].entropies, self.config.normalizer, group.vocab_size)
        if self.config.alpha + self.config.beta * change > self.config.tau:
            return [Fork(rollout=event.rollout, turn=event.turn, n=n)]
        return []


def normalized_change(
    entropies: Sequence[float], initial: Sequence[float], normalizer: Normalizer, vocab_size: int
) -> float:
    """`normalize(H_t - H_initial)` over the positions that both have; 0 if there are none. Positive: less certain."""
    differences = [now - before for now, before in zip(entropies, initial, strict=False)]
    if not differences:
        return 0.0
    total = math.fsum(differences)
    match normalizer:
        case Normalizer.SUM_VOCAB:
            return total / vocab_size
        case Normalizer.SUM_LN_VOCAB:
            return total / math.log(vocab_size)
        case Normalizer.MEAN_LN_VOCAB:
            return total / len(differences) / math.log(vocab_size)
