"""The gap between engine and trainer: mu, which sampled, is not pi_old, even with the same weights.

Truncated importance sampling weighs each token's policy loss by min(pi_old / mu, cap), without a gradient (Yao et al.,
"Your efficient RL framework secretly brings you off-policy RL training", 2025; the cap is that of IMPALA, arXiv
1802.01561).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ramet.algorithms.ratio import clamped, ratio_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicy:
    """Per token, detached. `weight` is 1 where nothing was sampled."""

    weight: Tensor  # [T]
    truncated: Tensor  # [T] float, 1 where the cap applied
    clamped: Tensor  # [T] float, 1 where the ratio was beyond its bounds (`ratio.LIMIT`)


def truncated_weights(old_logprobs: Tensor, engine_logprobs: Tensor, cap: float | None) -> OffPolicy:
    """The off-policy weight of each token. `cap` None switches the correction off: all weights are 1."""
    if cap is None:
        ones = torch.ones_like(old_logprobs)
        return OffPolicy(weight=ones, truncated=torch.zeros_like(ones), clamped=torch.zeros_like(ones))
    ratio = ratio_of(old_logprobs, engine_logprobs).detach()
    return OffPolicy(
        weight=ratio.clamp(max=cap), truncated=(ratio > cap).float(), clamped=clamped(old_logprobs, engine_logprobs)
    )
