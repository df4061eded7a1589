"""Advantages that count more where the policy was uncertain (arXiv 2510.14545, §3).

    A_i = (R_i - mean R) / (std R + eps)       a rollout's, relative to its group
    z_t = (H_t - mean H) / std H               of a token's entropy, over all trained tokens of the step
    A_it = A_i * max(0, 1 + a * z_t)

H are the engine's exact entropies, of the policy that sampled, without a gradient. A token that rollouts share is
counted in each of them, as it is trained.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ramet import AdvantageInputs, AdvantageOutput, ConfigError, Need, group_statistics, rollout_scores
from ramet_aepo.config import AepoAdvantageConfig


class AepoAdvantage:
    """The advantage estimator `aepo`."""

    needs = frozenset({Need.ENTROPY})
    reads_threads = True

    def __init__(self, config: AepoAdvantageConfig) -> None:
        self.config = config

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        if batch.entropies is None:
            raise ConfigError("advantage: aepo needs the entropies of tokens, and the batch has none")
        factor = entropy_factor(batch.entropies, batch.mask, self.config.entropy_weight)
        turned = float(((factor < 0) & batch.mask).sum() / batch.mask.sum().clamp(min=1))
        if self.config.keep_sign:
            factor = factor.clamp(min=0)
        scores = rollout_scores(batch)
        group = group_statistics(scores, batch.group_ids)
        of_rollouts = group.relative(scores, normalize_std=self.config.normalize_std, eps=self.config.eps)
        return AdvantageOutput(
            advantages=torch.where(batch.mask, of_rollouts[:, None] * factor, 0.0).float(),
            metrics={"advantage/negative_factor_share": turned},
        )


def entropy_factor(entropies: Tensor, mask: Tensor, weight: float) -> Tensor:
    """`[N, T]` float64 without gradient, 1 + weight * z, with the mean and unbiased std over the mask.

    1 everywhere if all entropies in the mask are equal, or there is only one; anything outside the mask.
    """
    entropies = entropies.detach().double()
    inside = entropies[mask]
    if len(inside) < 2 or bool((inside == inside[0]).all()):
        return torch.ones_like(entropies)
    return 1 + weight * (entropies - inside.mean()) / inside.std()
