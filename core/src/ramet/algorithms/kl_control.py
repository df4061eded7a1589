"""KL within the reward, and the coefficient that follows a target.

r_t <- r_t - coef kl_t                                         on sampled tokens (Ouyang et al., arXiv 2203.02155)
A_t <- A_t - coef sum_{l >= t} kl_l                            the same, for an advantage that discounts no rewards
coef <- coef (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon)        after n rollouts (Ziegler et al., 1909.08593)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ramet.algorithms.kl import kl_estimate
from ramet.config.schema import KlEstimator

LARGEST_ERROR = 0.2  # a step never corrects by more than this share per horizon
KL_HORIZON = 10_000  # rollouts over which it may, as Ziegler et al. chose; of larger steps, one step


@dataclass(slots=True, kw_only=True)
class KlController:
    """`coef` is fixed without a target."""

    coef: float
    target: float | None = None
    horizon: int = KL_HORIZON  # rollouts, at least as many as a step has

    def update(self, kl: float, n_rollouts: int) -> None:
        """`kl` was found over these rollouts. Above the target the coefficient rises, below it falls."""
        if self.target is not None:
            error = min(max(kl / self.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
            self.coef *= 1 + error * n_rollouts / self.horizon


@dataclass(frozen=True, slots=True, kw_only=True)
class KlPenalty:
    """The KL's penalty on rewards."""

    token_rewards: Tensor  # [N, T] float32: -coef kl on sampled tokens, 0 elsewhere
    kl: float  # mean over rollouts of the mean over their sampled tokens

    def to_go(self, mask: Tensor) -> Tensor:
        """`[N, T]`: the penalty of a sampled token and the tokens after it; 0 outside the mask."""
        return self.token_rewards.double().flip(1).cumsum(1).flip(1).float() * mask


def kl_penalty(
    logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, *, coef: float, estimator: KlEstimator
) -> KlPenalty:
    """Return the penalty of `[N, T]` log-probabilities. A rollout without sampled tokens counts with a KL of 0."""
    kl = torch.where(mask, kl_estimate(logprobs, ref_logprobs, estimator), 0.0)
    by_rollout = kl.double().sum(1) / mask.sum(1).clamp(min=1)
    return KlPenalty(token_rewards=-coef * kl, kl=float(by_rollout.mean()) if len(by_rollout) else 0.0)
