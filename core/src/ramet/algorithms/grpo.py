"""GRPO: a rollout's advantage is its score relative to its group (DeepSeekMath, arXiv 2402.03300, §4.1.2).

    A_i = (s_i - mean) / (std + eps)        std with n - 1; Dr. GRPO (arXiv 2503.20783) leaves the division out

Statistics are taken over the rows that are given: a rollout that infrastructure failed is no row, so it changes no
baseline. Forks are ordinary members of their group (the ARPO paper's "soft" attribution).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ramet.algorithms.config import GrpoConfig
from ramet.types import AdvantageInputs, AdvantageOutput, Need


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatistics:
    """Per row, the mean and the unbiased standard deviation of its group; 0 and 1 for a group of one."""

    mean: Tensor  # [N] float64
    std: Tensor  # [N] float64


def group_statistics(scores: Tensor, group_ids: Tensor) -> GroupStatistics:
    """Statistics of ragged, interleaved groups.

    In float64, where the mean of equal float32 scores is that score: a group without spread gets exactly 0.
    """
    scores = scores.double()
    _, group = torch.unique(group_ids, return_inverse=True)
    zeros = scores.new_zeros(int(group.max()) + 1 if len(group) else 0)
    size = zeros.index_add(0, group, torch.ones_like(scores))
    mean = torch.where(size > 1, zeros.index_add(0, group, scores) / size, 0.0)
    squares = zeros.index_add(0, group, (scores - mean[group]) ** 2)
    std = torch.where(size > 1, (squares / (size - 1)).sqrt(), 1.0)
    return GroupStatistics(mean=mean[group], std=std[group])


class Grpo:
    """Advantage estimator `grpo`."""

    needs: frozenset[Need] = frozenset()

    def __init__(self, config: GrpoConfig) -> None:
        self.config = config

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scores = batch.rewards.double()
        if batch.token_rewards is not None:
            scores = scores + batch.token_rewards.double().sum(1)
        statistics = group_statistics(scores, batch.group_ids)
        advantage = scores - statistics.mean
        if self.config.normalize_std:
            advantage = advantage / (statistics.std + self.config.eps)
        advantages = advantage.float()[:, None] * batch.mask
        flat = float((statistics.std == 0).double().mean()) if len(scores) else 0.0
        return AdvantageOutput(advantages=advantages, metrics={"advantage/rows_without_spread": flat})
