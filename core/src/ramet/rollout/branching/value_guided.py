"""The branch policy `value_guided`: once rewards are known, failed rollouts are forked where they were uncertain.

Some rollouts start from the prompt. Whenever all of a group's rollouts have finished and have their rewards, a round
begins. Among all turns of failed rollouts, the ones whose sampled tokens had the highest mean entropy are forked at
their beginning. Turns that were not forked before come first. The rest of the budget is divided evenly over `rounds`. A
round without any failed rollout that called a tool starts from the prompt instead, so the budget is always used.

Post-hoc forks of failed paths: DEEP-GRPO (arXiv 2602.14169) resamples pivots of failed paths, BranPO (arXiv 2602.03719)
contrasts their suffixes. The choice of the turn by its entropy is Ramet's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from ramet.errors import ConfigError
from ramet.rollout.branching.builtin import initial_rollouts
from ramet.rollout.config import ValueGuidedConfig
from ramet.types import BranchAction, BranchEvent, Fork, GroupView, Idle, Need, RolloutView, Start, StartRoots


class ValueGuided:
    """Masked and stopped rollouts are not forked: they have no reward."""

    needs: frozenset[Need] = frozenset({Need.REWARDS, Need.ENTROPY, Need.EARLIER_TURNS})

    def __init__(self, config: ValueGuidedConfig) -> None:
        self.config = config

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        match event:
            case Start():
                return [StartRoots(n=initial_rollouts(self.config.initial_rollouts, group.budget))]
            case Idle():
                return self._round(group)
        return []

    def _round(self, group: GroupView) -> Sequence[BranchAction]:
        later = group.budget - initial_rollouts(self.config.initial_rollouts, group.budget)
        n = min(group.budget_left, -(-later // self.config.rounds))
        turns = sorted(turn for view in group.rollouts if self._has_failed(view) for turn in _turns(view))
        forks = [
            Fork(rollout=id, turn=turn, reason={"mean entropy of the turn": -negated, "forks there before": before})
            for before, negated, id, turn in turns[:n]
        ]
        return forks or [StartRoots(n=n)]

    def _has_failed(self, view: RolloutView) -> bool:
        return view.reward is not None and view.reward < self.config.failed_below


def _turns(view: RolloutView) -> Iterator[tuple[int, float, str, int]]:
    """Own turns after a tool result, to be sorted: forks taken there, minus the mean entropy, rollout, turn."""
    for turn in view.turns[(view.fork_turn or 0) + 1 :]:
        if turn.n_tokens and not turn.entropies:
            raise ConfigError("branch_policy: value_guided needs exact entropies, and this engine reports none")
        mean = sum(turn.entropies) / max(1, len(turn.entropies))
        yield turn.n_forks, -mean, view.id, turn.index
