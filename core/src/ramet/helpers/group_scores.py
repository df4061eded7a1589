"""Scores of rollouts and statistics of their groups, for advantage estimators. Works on tensors and imports no torch.

Statistics are over the given rows: a rollout that infrastructure failed has no row, so it changes no baseline. The core
leaves groups of one out before an estimator sees them; called with one nevertheless, an estimator takes 0 for its mean
and 1 for its standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet.types import AdvantageInputs

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Per row, the mean and the unbiased standard deviation of its group; 0 and 1 for a group of one."""

    mean: Tensor  # [N] float64
    std: Tensor  # [N] float64
    size: Tensor  # [N] float64, at least 1

    def relative(self, scores: Tensor, *, normalize_std: bool, eps: float) -> Tensor:
        """`[N]` float64: (score - mean) / (std + eps) or, without `normalize_std`, score - mean."""
        centred = scores.double() - self.mean
        return centred / (self.std + eps) if normalize_std else centred


def group_statistics(scores: Tensor, group_ids: Tensor) -> GroupStatistics:
    """Statistics of `scores` `[N]` by `group_ids` `[N]`, which are names.

    In float64, where the mean of equal float32 scores is that score: a group without spread gets exactly 0.
    """
    scores = scores.double()
    group: Tensor = group_ids.unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
    zeros = scores.new_zeros(int(group.max()) + 1 if len(group) else 0)
    size = zeros.index_add(0, group, scores.new_ones(scores.shape))
    mean = (zeros.index_add(0, group, scores) / size).where(size > 1, zeros)
    squares = zeros.index_add(0, group, (scores - mean[group]) ** 2)
    std = (squares / (size - 1)).sqrt().where(size > 1, zeros + 1)
    return GroupStatistics(mean=mean[group], std=std[group], size=size[group])


def rollout_scores(batch: AdvantageInputs) -> Tensor:
    """`[N]` float64: a rollout's reward and its token rewards together."""
    scores = batch.rewards.double()
    if batch.token_rewards is not None:
        scores = scores + batch.token_rewards.double().sum(1)
    return scores
