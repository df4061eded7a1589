from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.types import LossInputs

Batch = Callable[..., LossInputs]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.25, 1.0, -1.25, -1.25),  # inside the wider upper range
        (1.5, 1.0, -1.3, 0.0),
        (0.5, 1.0, -0.5, -0.5),  # a falling good token is not clipped
        (0.5, -1.0, 0.8, 0.0),
        (1.5, -1.0, 1.5, 1.5),
        (4.0, -1.0, 2.0, 0.0),  # dual clip
        (4.0, 1.0, -1.3, 0.0),
    ],
)
def test_the_clipped_surrogate_by_hand(
    loss_batch: Batch, ratio: float, advantage: float, loss: float, slope: float
) -> None:
    logprobs = torch.tensor([ratio]).log().requires_grad_()
    config = PpoClipConfig(clip_low=0.2, clip_high=0.3, dual_clip=2.0)
    output = PpoClip(config)(loss_batch(logprobs, torch.zeros(1), torch.tensor([advantage])))
    output.per_token.sum().backward()
    assert output.per_token.item() == pytest.approx(loss, abs=1e-6)
    assert logprobs.grad is not None
    assert logprobs.grad.item() == pytest.approx(slope, abs=1e-6)


def test_metrics_are_detached_and_per_token(loss_batch: Batch) -> None:
    logprobs = torch.tensor([0.0, 0.5, 2.0]).requires_grad_()
    advantages = torch.tensor([1.0, 1.0, -1.0])
    output = PpoClip(PpoClipConfig())(loss_batch(logprobs, torch.zeros(3), advantages))
    assert all(not values.requires_grad and values.shape == (3,) for values in output.metrics.values())
    assert output.metrics["clip_fraction"].tolist() == [0.0, 1.0, 0.0]
    assert output.metrics["clip_fraction_low"].tolist() == [0.0, 0.0, 1.0]
    assert output.metrics["approx_kl"].tolist() == [0.0, -0.5, -2.0]


def test_without_dual_clip_a_bad_token_has_no_ceiling(loss_batch: Batch) -> None:
    logprobs = torch.tensor([3.0])
    output = PpoClip(PpoClipConfig(dual_clip=None))(loss_batch(logprobs, torch.zeros(1), torch.tensor([-1.0])))
    assert output.per_token.item() == pytest.approx(torch.tensor(3.0).exp().item())
    assert output.metrics["clip_fraction_low"].tolist() == [0.0]


def test_the_gradient_is_that_of_finite_differences(loss_batch: Batch) -> None:
    generator = torch.Generator().manual_seed(3)
    logprobs = torch.randn(32, generator=generator, dtype=torch.float64)
    old = logprobs + 0.4 * torch.randn(32, generator=generator, dtype=torch.float64)
    advantages = torch.randn(32, generator=generator, dtype=torch.float64)
    loss = PpoClip(PpoClipConfig())
    assert torch.autograd.gradcheck(
        lambda x: loss(loss_batch(x, old, advantages)).per_token, (logprobs.requires_grad_(),), eps=1e-7, atol=1e-5
    )
