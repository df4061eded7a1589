"""Per-token estimates of KL(pi || reference) from the log-probabilities of the sampled token.

k1, k2 and k3 are those of J. Schulman, "Approximating KL divergence" (2020); k3 is clamped to [-10, 10].
"""

from __future__ import annotations

from torch import Tensor

from ramet.config.schema import KlEstimator

K3_LIMIT = 10.0
EXPONENT_LIMIT = 20.0  # far beyond K3_LIMIT: changes no value, and keeps 0 * inf out of the gradient


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """Same shape as the inputs; differentiable in both."""
    difference = logprobs - ref_logprobs
    if estimator is KlEstimator.K1:
        return difference
    if estimator is KlEstimator.ABS:
        return difference.abs()
    if estimator is KlEstimator.K2:
        return 0.5 * difference.square()
    exponent = (-difference).clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
    return (exponent.exp() - exponent - 1).clamp(-K3_LIMIT, K3_LIMIT)
