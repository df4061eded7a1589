"""Ragged, interleaved groups of rollouts: their scores, and statistics that every row of a group gets.

Statistics are taken over the rows that are given: a rollout that infrastructure failed is no row, so it changes no
baseline. The core leaves groups of one out before an estimator sees them; called with one nevertheless, an estimator
takes 0 for its mean and 1 for its standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ramet.types import AdvantageInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Per row, the mean and the unbiased standard deviation of its group; 0 and 1 for a group of one."""

    mean: Tensor  # [N] float64
    std: Tensor  # [N] float64
    size: Tensor  # [N] float64, at least 1


def group_statistics(scores: Tensor, group_ids: Tensor) -> GroupStatistics:
    """Statistics of `scores` `[N]` by `group_ids` `[N]`, which are names.

    In float64, where the mean of equal float32 scores is that score: a group without spread gets exactly 0.
    """
    scores = scores.double()
    _, group = torch.unique(group_ids, return_inverse=True)
    zeros = scores.new_zeros(int(group.max()) + 1 if len(group) else 0)
    size = zeros.index_add(0, group, torch.ones_like(scores))
    mean = torch.where(size > 1, zeros.index_add(0, group, scores) / size, 0.0)
    squares = zeros.index_add(0, group, (scores - mean[group]) ** 2)
    std = torch.where(size > 1, (squares / (size - 1)).sqrt(), 1.0)
    return GroupStatistics(mean=mean[group], std=std[group], size=size[group])


def group_sums(values: Tensor, group_ids: Tensor) -> Tensor:
    """`[N]` float64: for each row the sum of `values` `[N]` over its group."""
    values = values.double()
    _, group = torch.unique(group_ids, return_inverse=True)
    return values.new_zeros(int(group.max()) + 1 if len(group) else 0).index_add(0, group, values)[group]


def rollout_scores(batch: AdvantageInputs) -> Tensor:
    """`[N]` float64: a rollout's reward and its token rewards together."""
    scores = batch.rewards.double()
    if batch.token_rewards is not None:
        scores = scores + batch.token_rewards.double().sum(1)
    return scores


def without_spread(statistics: GroupStatistics) -> dict[str, float]:
    """The metric `advantage/rows_without_spread`: the share of rows whose group has no spread of scores."""
    flat = float((statistics.std == 0).double().mean()) if len(statistics.std) else 0.0
    return {"advantage/rows_without_spread": flat}


def over_tokens(advantage: Tensor, mask: Tensor) -> Tensor:
    """`[N, T]` float32: every sampled token has its rollout's advantage `[N]`, all others 0."""
    return advantage.float()[:, None] * mask
