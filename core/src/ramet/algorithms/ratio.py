"""Ratios of probabilities from their logarithms, bounded so that no token can overflow an update.

Above a difference of 88 float32 gives infinity, and infinity times an advantage of 0 is NaN. The bound of ±20
is verl's: e^20 is 5e8, far beyond every clip range, so the clamp changes no token that an algorithm would train on.
"""

from __future__ import annotations

from torch import Tensor

LIMIT = 20.0


def ratio_of(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """exp(log p - log p_old), between e^-20 and e^20; differentiable, with a gradient of 0 beyond the bounds."""
    return (logprobs - old_logprobs).clamp(-LIMIT, LIMIT).exp()


def clamped(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Float, 1 where `ratio_of` was bounded."""
    return ((logprobs - old_logprobs).detach().abs() > LIMIT).float()
