from __future__ import annotations

import pytest
import torch

from ramet.algorithms.kl import kl_estimate
from ramet.config.schema import KlEstimator


@pytest.mark.parametrize(
    ("estimator", "expected"), [("k1", -0.5), ("abs", 0.5), ("k2", 0.125), ("k3", 0.14872127070012815)]
)
def test_estimators_by_hand(estimator: str, expected: float) -> None:
    found = kl_estimate(torch.tensor([-1.5]), torch.tensor([-1.0]), KlEstimator(estimator))
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_k3_is_clamped_and_keeps_a_finite_gradient_where_the_exponential_overflows() -> None:
    logprobs = torch.tensor([-200.0, 0.0, -1.0]).requires_grad_()
    found = kl_estimate(logprobs, torch.tensor([0.0, -200.0, -1.0]), KlEstimator.K3)
    found.sum().backward()
    assert found.tolist() == [10.0, 10.0, 0.0]
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()


def test_k3_estimates_the_divergence_of_two_distributions() -> None:
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.randn(6, generator=generator).log_softmax(0) for _ in range(2))
    exact = (p.exp() * (p - q)).sum().item()
    by_expectation = (p.exp() * kl_estimate(p, q, KlEstimator.K3)).sum().item()
    assert by_expectation == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize(("estimator", "value"), [("k1+", -0.5), ("abs+", 0.5), ("k3+", 0.1487213)])
def test_straight_through_kinds_have_the_gradient_of_k2(estimator: str, value: float) -> None:
    logprobs = torch.tensor([-1.5]).requires_grad_()
    found = kl_estimate(logprobs, torch.tensor([-1.0]), KlEstimator(estimator))
    found.backward()
    assert found.item() == pytest.approx(value, abs=1e-6)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(-0.5)


def test_the_gradient_of_k2_is_that_of_the_divergence_in_expectation() -> None:
    """Over all tokens of a distribution, each by its probability; that of k1 is 0."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, generator=generator, dtype=torch.float64).requires_grad_()
    reference = torch.randn(6, generator=generator, dtype=torch.float64).log_softmax(0)

    def gradient(of: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(of, [logits])[0]

    logprobs = logits.log_softmax(0)
    exact = gradient((logprobs.exp() * (logprobs - reference)).sum())
    for kind, expected in (("k2", exact), ("k1+", exact), ("k3+", exact), ("k1", torch.zeros(6, dtype=torch.float64))):
        logprobs = logits.log_softmax(0)
        sampled = (logprobs.exp().detach() * kl_estimate(logprobs, reference, KlEstimator(kind))).sum()
        torch.testing.assert_close(gradient(sampled), expected)
