"""Common functions of estimators (see also `ramet.helpers.group_scores`): sums by group, a metric, rows to tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from ramet.helpers.group_scores import GroupStatistics


def group_sums(values: Tensor, group_ids: Tensor) -> Tensor:
    """`[N]` float64: for each row the sum of `values` `[N]` over its group."""
    values = values.double()
    _, group = torch.unique(group_ids, return_inverse=True)
    return values.new_zeros(int(group.max()) + 1 if len(group) else 0).index_add(0, group, values)[group]


def without_spread(statistics: GroupStatistics) -> dict[str, float]:
    """The metric `advantage/rows_without_spread`: the share of rows whose group has no spread of scores."""
    flat = float((statistics.std == 0).double().mean()) if len(statistics.std) else 0.0
    return {"advantage/rows_without_spread": flat}


def over_tokens(advantage: Tensor, mask: Tensor) -> Tensor:
    """`[N, T]` float32: every sampled token has its rollout's advantage `[N]`, all others 0."""
    return advantage.float()[:, None] * mask
