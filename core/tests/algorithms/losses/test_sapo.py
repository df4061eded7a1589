from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.losses.config import SapoConfig
from ramet.algorithms.losses.sapo import Sapo
from ramet.types import LossInputs

Batch = Callable[..., LossInputs]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # -A 4 / tau sigmoid(tau (r - 1)), and r times its derivative -A 4 sigmoid (1 - sigmoid)
        (1.0, 2.0, -4.0, -2.0),
        (2.0, 1.0, -4 * 0.7310586, -2 * 4 * 0.1966119),
        (2.0, -1.0, 4 / 2 * 0.8807971, 2 * 4 * 0.1049936),  # tau 2
    ],
)
def test_the_gate_by_hand(loss_batch: Batch, ratio: float, advantage: float, loss: float, slope: float) -> None:
    logprobs = torch.tensor([ratio]).log().requires_grad_()
    output = Sapo(SapoConfig(tau_negative=2.0))(loss_batch(logprobs, torch.zeros(1), torch.tensor([advantage])))
    (gradient,) = torch.autograd.grad(output.per_token.sum(), [logprobs])
    assert output.per_token.item() == pytest.approx(loss, rel=1e-5)
    assert gradient.item() == pytest.approx(slope, rel=1e-5)


def test_the_gradient_is_that_of_finite_differences(loss_batch: Batch) -> None:
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(32, generator=generator, dtype=torch.float64)
    logprobs = old + 0.4 * torch.randn(32, generator=generator, dtype=torch.float64)
    advantages = torch.randn(32, generator=generator, dtype=torch.float64)
    loss = Sapo(SapoConfig())
    assert torch.autograd.gradcheck(
        lambda x: loss(loss_batch(x, old, advantages)).per_token, (logprobs.requires_grad_(),)
    )
