"""RLOO: a rollout's baseline is the mean of the others of its group (Ahmadian et al., arXiv 2402.14740).

A_i = s_i - mean_{j != i} s_j = n / (n - 1) (s_i - mean)
"""

from __future__ import annotations

from typing import Literal

import torch

from ramet.algorithms.advantages.groups import over_tokens, without_spread
from ramet.helpers.group_scores import group_statistics, rollout_scores
from ramet.types import AdvantageInputs, AdvantageOutput, Need


class Rloo:
    """Advantage estimator `rloo`."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True
    scope: Literal["batch", "group"] = "group"

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scores = rollout_scores(batch)
        group = group_statistics(scores, batch.group_ids)
        others = torch.where(group.size > 1, group.size / (group.size - 1).clamp(min=1), 1.0)
        advantage = others * (scores - group.mean)
        return AdvantageOutput(advantages=over_tokens(advantage, batch.mask), metrics=without_spread(group))
