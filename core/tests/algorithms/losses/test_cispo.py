from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.losses.cispo import Cispo
from ramet.algorithms.losses.config import CispoConfig
from ramet.types import LossInputs

Batch = Callable[..., LossInputs]


@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [(1.0, 2.0, 1.0), (1.5, 2.0, 1.3), (0.5, 2.0, 0.8), (1.5, -1.0, 1.3), (0.5, -1.0, 0.8), (1.1, 0.0, 1.1)],
)
def test_the_clipped_ratio_weighs_reinforce_and_no_gradient_is_lost(
    loss_batch: Batch, ratio: float, advantage: float, weight: float
) -> None:
    logprobs = torch.tensor([ratio]).log().sub(1).requires_grad_()
    output = Cispo(CispoConfig(clip_low=0.2, clip_high=0.3))(
        loss_batch(logprobs, torch.tensor([-1.0]), torch.tensor([advantage]))
    )
    (gradient,) = torch.autograd.grad(output.per_token.sum(), [logprobs])
    assert output.per_token.item() == pytest.approx(-weight * advantage * logprobs.item(), abs=1e-6)
    assert gradient.item() == pytest.approx(-weight * advantage, abs=1e-6)
    assert output.metrics["clip_fraction"].item() == float(weight != ratio)


def test_by_default_there_is_no_lower_bound_and_the_weight_is_at_most_5(loss_batch: Batch) -> None:
    logprobs = torch.tensor([-8.0, 3.0]).requires_grad_()
    output = Cispo(CispoConfig())(loss_batch(logprobs, torch.tensor([0.0, 0.0]), torch.ones(2)))
    (gradient,) = torch.autograd.grad(output.per_token.sum(), [logprobs])
    torch.testing.assert_close(gradient, -torch.tensor([torch.tensor(-8.0).exp().item(), 5.0]))
