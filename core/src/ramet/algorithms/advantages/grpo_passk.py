"""GRPO for pass@k: only the best rollout of a group is rewarded, by its lead (Tang et al., arXiv 2503.19595).

    A_best = (s_best - s_second) / (std + eps)        all others 0

It is the leave-one-out advantage of the group's best score, which is what pass@k counts: without the best rollout the
best score would be the second. In a tie for the best no rollout gets an advantage.
"""

from __future__ import annotations

from typing import Literal

import torch

from ramet.algorithms.advantages.config import GrpoPasskConfig
from ramet.algorithms.advantages.groups import over_tokens, without_spread
from ramet.helpers.group_scores import group_statistics, rollout_scores
from ramet.types import AdvantageInputs, AdvantageOutput, Need


class GrpoPassk:
    """Advantage estimator `grpo_passk`. Raises `ValueError` for a group of one, which has no second."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True
    scope: Literal["batch", "group"] = "group"

    def __init__(self, config: GrpoPasskConfig) -> None:
        self.config = config

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scores = rollout_scores(batch)
        group = group_statistics(scores, batch.group_ids)
        alone = batch.group_ids[group.size < 2]
        if len(alone):
            raise ValueError(
                f"grpo_passk needs at least 2 rollouts in every group; group {int(alone[0])} has 1 (the core leaves "
                "such groups out)"
            )
        advantage = torch.zeros_like(scores)
        for number in torch.unique(batch.group_ids):
            members = (batch.group_ids == number).nonzero().squeeze(1)
            best = scores[members].topk(2)
            advantage[members[best.indices[0]]] = best.values[0] - best.values[1]
        if self.config.normalize_std:
            advantage = advantage / (group.std + self.config.eps)
        return AdvantageOutput(advantages=over_tokens(advantage, batch.mask), metrics=without_spread(group))
