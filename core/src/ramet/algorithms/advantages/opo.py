"""OPO: the baseline that minimises the variance of the gradient, if its size grows with the length (arXiv 2505.23585).

A_i = s_i - sum_j L_j s_j / sum_j L_j        L_j: sampled tokens of rollout j, over its group
"""

from __future__ import annotations

from typing import Literal

import torch

from ramet.algorithms.advantages.groups import group_sums, over_tokens, without_spread
from ramet.helpers.group_scores import group_statistics, rollout_scores
from ramet.types import AdvantageInputs, AdvantageOutput, Need


class Opo:
    """Advantage estimator `opo`. Equal scores give exactly 0."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True
    scope: Literal["batch", "group"] = "group"

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scores, lengths = rollout_scores(batch), batch.mask.sum(1).double()
        group = group_statistics(scores, batch.group_ids)
        # Relative to the mean, which changes nothing but the rounding.
        distance = scores - group.mean
        total = group_sums(lengths, batch.group_ids).clamp(min=1)
        shift = torch.where(group.size > 1, group_sums(lengths * distance, batch.group_ids) / total, 0.0)
        return AdvantageOutput(advantages=over_tokens(distance - shift, batch.mask), metrics=without_spread(group))
