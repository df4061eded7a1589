"""ReMax: the baseline is the reward of a greedy rollout of the same task (Li et al., arXiv 2310.10505).

    A_t = (reward of the rollout and of its tokens from t on) - (reward of the greedy rollout and of all its tokens)

The greedy rollout runs in addition to the group and is not trained on; a group whose greedy rollout is masked is left
out.
"""

from __future__ import annotations

from typing import Literal

from ramet.helpers.group_scores import rollout_scores
from ramet.types import AdvantageInputs, AdvantageOutput, Need


class Remax:
    """Advantage estimator `remax`."""

    needs: frozenset[Need] = frozenset({Need.GREEDY_ROLLOUT})
    reads_threads = True
    scope: Literal["batch", "group"] = "group"
    min_group = 1  # the baseline is not the group's

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        assert batch.greedy_rewards is not None  # the core fills what `needs` names
        advantages = (batch.rewards.double() - batch.greedy_rewards.double())[:, None].expand(batch.mask.shape)
        if batch.token_rewards is not None:
            advantages = advantages + batch.token_rewards.double().flip(1).cumsum(1).flip(1)
        better = (rollout_scores(batch) > batch.greedy_rewards).double()
        metrics = {"advantage/better_than_greedy": float(better.mean()) if len(better) else 0.0}
        return AdvantageOutput(advantages=advantages.float() * batch.mask, metrics=metrics)
