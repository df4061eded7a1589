from __future__ import annotations

from collections.abc import Callable

import torch

from ramet.algorithms.losses.config import GmpoConfig
from ramet.algorithms.losses.gmpo import Gmpo
from ramet.types import LossInputs

Batch = Callable[..., LossInputs]


def test_a_sequence_has_the_geometric_mean_of_its_clipped_ratios(loss_batch: Batch) -> None:
    logprobs = torch.tensor([0.1, 0.9, -0.9, 7.0, 0.1, 0.9, -0.9]).requires_grad_()
    advantages = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    mask = torch.tensor([True, True, True, False, True, True, True])
    batch = loss_batch(logprobs, torch.zeros(7), advantages, mask, [0, 0, 0, 0, 1, 1, 1])
    output = Gmpo(GmpoConfig(clip_low=0.4, clip_high=0.5))(batch)
    # A > 0: 0.9 counts as 0.5, -0.9 as itself; A < 0: 0.9 as itself, -0.9 as -0.4
    good, bad = torch.tensor((0.1 + 0.5 - 0.9) / 3).exp(), torch.tensor((0.1 + 0.9 - 0.4) / 3).exp()
    torch.testing.assert_close(output.per_token[mask].detach(), torch.stack([-good] * 3 + [bad] * 3))
    (gradient,) = torch.autograd.grad(output.per_token[mask].sum(), [logprobs])
    torch.testing.assert_close(gradient, torch.stack([-good, 0 * good, -good, 0 * good, bad, bad, 0 * bad]))
    assert output.metrics["clip_fraction"][mask].tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]


def test_the_gradient_is_that_of_finite_differences(loss_batch: Batch) -> None:
    generator = torch.Generator().manual_seed(3)
    old = -torch.rand(12, generator=generator, dtype=torch.float64)
    logprobs = old + 0.5 * torch.randn(12, generator=generator, dtype=torch.float64)
    advantages = torch.randn(12, generator=generator, dtype=torch.float64)
    loss, sequences = Gmpo(GmpoConfig()), [0] * 5 + [1] * 7
    assert torch.autograd.gradcheck(
        lambda x: loss(loss_batch(x, old, advantages, sequences=sequences)).per_token, (logprobs.requires_grad_(),)
    )
