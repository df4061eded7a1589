from __future__ import annotations

import pytest
import torch

from ramet.algorithms.kl_control import KlController, kl_penalty
from ramet.config.schema import KlEstimator


def test_the_coefficient_follows_the_target_by_at_most_a_fifth_per_horizon() -> None:
    controller = KlController(coef=0.2, target=0.1, horizon=1000)
    for kl, expected in ((0.11, 0.2 * 1.01), (10.0, 0.2 * 1.01 * 1.02), (0.0, 0.2 * 1.01 * 1.02 * 0.98)):
        controller.update(kl, 100)
        assert controller.coef == pytest.approx(expected)


def test_without_a_target_the_coefficient_is_fixed() -> None:
    controller = KlController(coef=0.2)
    controller.update(50.0, 1000)
    assert controller.coef == 0.2


def test_rewards_of_sampled_tokens_lose_the_kl() -> None:
    logprobs = torch.tensor([[-1.0, 0.0, -2.0], [-1.0, -1.0, 0.0]])
    reference = torch.tensor([[-1.5, -9.0, -1.0], [-2.0, -1.0, 0.0]])
    mask = torch.tensor([[True, False, True], [True, False, False]])
    found = kl_penalty(logprobs, reference, mask, coef=0.1, estimator=KlEstimator.K1)
    torch.testing.assert_close(found.token_rewards, torch.tensor([[-0.05, 0.0, 0.1], [-0.1, 0.0, 0.0]]))
    assert found.kl == pytest.approx(((0.5 - 1.0) / 2 + 1.0) / 2)


def test_rollouts_without_sampled_tokens_and_empty_batches_have_no_kl() -> None:
    zeros = torch.zeros(1, 2)
    assert kl_penalty(zeros, zeros + 1, zeros.bool(), coef=1.0, estimator=KlEstimator.K3).kl == 0
    nothing = torch.zeros(0, 0)
    assert kl_penalty(nothing, nothing, nothing.bool(), coef=1.0, estimator=KlEstimator.K3).kl == 0
