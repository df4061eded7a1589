"""Fork where the entropy rose after a tool result (arXiv 2507.19849, §3.1).

N rollouts start from the prompt. The entropies of a root's first k tokens are the baseline of the root and of all that
descend from it. When the first k tokens after a tool result are known, `change = normalize(H_t - H_initial)`; the
rollout is forked after that tool result if `alpha + beta * change > tau`, or with that probability, and continues
itself. Budget that is left when everything has finished goes to new rollouts from the prompt, all at once.

Deviations from the paper, each an option or stated in the README: the scale of the change (`normalizer`), and vectors
of different length (a turn shorter than k) are compared position by position over the shorter one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
    entropy_change,
)
from ramet_arpo.config import ArpoConfig, Budget, Rule

logger = logging.getLogger(__name__)


class Arpo:
    """The branch policy `arpo`."""

    needs = frozenset({Need.ENTROPY})

    def __init__(self, config: ArpoConfig) -> None:
        self.config = config
        if config.inert:
            logger.warning(
                "branch_policy=arpo: alpha equals tau (%g), so a rollout is forked wherever the entropy rose, by "
                "however little, and %s no effect; raise branch_policy.params.tau to ask for more",
                config.tau,
                f"{' and '.join(config.inert)} {'has' if len(config.inert) == 1 else 'have'}",
            )

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        match event:
            case Start():
                return [StartRoots(n=self._initial(group.budget))]
            case FirstTokens():
                return self._after_first_tokens(event, group, rng)
            case Idle():
                return [StartRoots(n=group.budget_left)]
        return []

    def _initial(self, budget: int) -> int:
        configured = self.config.initial_rollouts
        if configured is not None and configured > budget:
            raise ConfigError(
                f"branch_policy.params.initial_rollouts: {configured} is more than rollout.group_size, {budget}"
            )
        return min(budget, max(1, budget // 2)) if configured is None else configured

    def _after_first_tokens(self, event: FirstTokens, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if not event.entropies:
            raise ConfigError("branch_policy: arpo needs exact entropies, and this engine reports none")
        n = min(self.config.branches, self._allowed(event.rollout, group))
        if event.turn == 0 or n == 0:
            return []
        reason = self._reason(event, group, rng)
        return [Fork(rollout=event.rollout, turn=event.turn, n=n, reason=reason)] if reason else []

    def _reason(self, event: FirstTokens, group: GroupView, rng: Random) -> Mapping[str, float]:
        """Return the numbers that decide for a fork; empty if none does."""
        config, window = self.config, self.config.window
        root = group.rollout(group.rollout(event.rollout).root)
        before = root.turns[0].entropies[: len(event.entropies)]
        change = entropy_change(event.entropies[:window], before[:window], config.normalizer, group.vocab_size)
        score = config.alpha + config.beta * change
        if config.rule is Rule.BERNOULLI:
            draw = rng.random()
            return {"entropy change": change, "probability": score, "draw": draw} if draw < score else {}
        return {"entropy change": change, "score": score, "tau": config.tau} if score > config.tau else {}

    def _allowed(self, rollout: str, group: GroupView) -> int:
        """Return how many forks the root of this rollout may still have."""
        root = group.rollout(rollout).root
        used = sum(member.root == root and member.parent is not None for member in group.rollouts)
        most = group.budget_left
        if self.config.max_forks_per_root is not None:
            most = min(most, self.config.max_forks_per_root - used)
        if self.config.budget is Budget.PER_ROOT:
            roots = [member.id for member in group.rollouts if member.parent is None]
            share, extra = divmod(group.budget - len(roots), len(roots))
            most = min(most, share + (roots.index(root) < extra) - used)
        return max(0, most)
