"""Per-token estimates of KL(pi || reference) from the log-probabilities of the sampled token.

k1, k2 and k3 are from J. Schulman, "Approximating KL divergence" (2020); k3 is clamped to [-10, 10]. verl calls them
`kl`, `mse` and `low_var_kl`. The gradient of k2 is an unbiased estimate of the KL's gradient for tokens that the policy
samples. The gradients of the others are not (k1's is 0 in expectation). So the `…+` kinds have the value of their name
and the gradient of k2 (straight-through; Tang and Munos, arXiv 2506.09477).

That is for the KL in the loss. An estimate k as a reward has no gradient: it weighs grad log pi, and E[grad log pi k]
is the gradient of the KL only for k1 (`k1-reward`). For k3 the gradient of the reversed KL is subtracted, which leaves
nearly 0 where the policies are close (Shah et al., arXiv 2512.21852).
"""

from __future__ import annotations

from torch import Tensor

from ramet.config.schema import KlEstimator

K3_LIMIT = 10.0
EXPONENT_LIMIT = 20.0  # far beyond K3_LIMIT: changes no value, and keeps 0 * inf out of the gradient
STRAIGHT_THROUGH = {
    KlEstimator.K1_PLUS: KlEstimator.K1,
    KlEstimator.ABS_PLUS: KlEstimator.ABS,
    KlEstimator.K3_PLUS: KlEstimator.K3,
}


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """Same shape as the inputs; differentiable in both."""
    difference = logprobs - ref_logprobs
    if estimator in STRAIGHT_THROUGH:
        value = kl_estimate(logprobs.detach(), ref_logprobs.detach(), STRAIGHT_THROUGH[estimator])
        gradient = kl_estimate(logprobs, ref_logprobs, KlEstimator.K2)
        return value + (gradient - gradient.detach())
    if estimator in (KlEstimator.K1, KlEstimator.K1_REWARD):
        return difference
    if estimator is KlEstimator.ABS:
        return difference.abs()
    if estimator is KlEstimator.K2:
        return 0.5 * difference.square()
    exponent = (-difference).clamp(-EXPONENT_LIMIT, EXPONENT_LIMIT)
    return (exponent.exp() - exponent - 1).clamp(-K3_LIMIT, K3_LIMIT)
