"""The branch policy `token_entropy`: a fork at the most uncertain token of a turn.

Some rollouts start from the prompt. Whenever a turn has ended, its sampled token with the highest entropy is looked up.
If that is at least `min_entropy`, the rollout is forked there: the fork shares all earlier tokens and samples this one
again. A rollout is forked at most `max_forks` times, so that the first to end do not use up the budget. Budget that is
left when everything has finished starts from the prompt.

TreeRL (arXiv 2506.11902, §3.2) forks at the most uncertain tokens of finished rollouts, APPO (arXiv 2606.12384) at any
token; here it is decided turn by turn, while the rollout continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ramet.errors import ConfigError
from ramet.rollout.branching.builtin import initial_rollouts
from ramet.rollout.config import TokenEntropyConfig
from ramet.types import (
    AfterTool,
    BranchAction,
    BranchEvent,
    Finished,
    Fork,
    GroupView,
    Idle,
    Need,
    RolloutView,
    Start,
    StartRoots,
)


class TokenEntropy:
    """Masked and stopped rollouts are not forked. In the first turn the first token is left out: that is a root."""

    needs: frozenset[Need] = frozenset({Need.ENTROPY, Need.EARLIER_TURNS})

    def __init__(self, config: TokenEntropyConfig) -> None:
        self.config = config

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        match event:
            case Start():
                return [StartRoots(n=initial_rollouts(self.config.initial_rollouts, group.budget))]
            case AfterTool(rollout=rollout, turn=turn) if group.budget_left:
                return self._fork(group.rollout(rollout), turn - 1)
            case Finished(rollout=rollout) if group.budget_left and group.rollout(rollout).valid:
                return self._fork(group.rollout(rollout), len(group.rollout(rollout).turns) - 1)
            case Idle():
                return [StartRoots(n=group.budget_left)]
        return []

    def _fork(self, view: RolloutView, turn: int) -> Sequence[BranchAction]:
        ended = view.turns[turn]
        if ended.n_tokens and not ended.entropies:
            raise ConfigError("branch_policy: token_entropy needs exact entropies, and this engine reports none")
        first = view.fork_token + 1 if turn == view.fork_turn else int(turn == 0)  # the fork point itself was decided
        own_tokens = range(first, ended.n_tokens)
        token = max(own_tokens, key=ended.entropies.__getitem__, default=None)
        if token is None or view.n_forks >= self.config.max_forks or ended.entropies[token] < self.config.min_entropy:
            return []
        reason = {"entropy of the token": ended.entropies[token], "lowest that forks": self.config.min_entropy}
        return [Fork(rollout=view.id, turn=turn, token=token, reason=reason)]
