from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.losses.config import GspoConfig, RatioUnit
from ramet.algorithms.losses.gspo import Gspo
from ramet.types import LossInputs

Batch = Callable[..., LossInputs]


def run(loss: Gspo, batch: LossInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss by token, and the gradient of its sum."""
    per_token = loss(batch).per_token
    (gradient,) = torch.autograd.grad(per_token[batch.mask].sum(), [batch.logprobs])
    return per_token.detach(), gradient


def test_a_sequence_has_one_ratio_the_geometric_mean(loss_batch: Batch) -> None:
    logprobs = torch.tensor([0.2, 5.0, 0.4, -0.3]).requires_grad_()
    mask = torch.tensor([True, False, True, True])
    batch = loss_batch(logprobs, torch.zeros(4), torch.tensor([1.0, 1.0, 1.0, -2.0]), mask, [0, 0, 0, 1])
    output = Gspo(GspoConfig(clip_low=0.5, clip_high=0.5))(batch)
    s = torch.tensor([0.3, -0.3]).exp()
    torch.testing.assert_close(output.per_token[mask].detach(), torch.stack([-s[0], -s[0], 2 * s[1]]))
    torch.testing.assert_close(output.metrics["sequence_ratio"][mask], s[torch.tensor([0, 0, 1])])


def test_a_turn_may_have_a_ratio_of_its_own(loss_batch: Batch) -> None:
    logprobs = torch.tensor([0.2, 0.4, -0.1, -0.3]).requires_grad_()
    batch = loss_batch(logprobs, torch.zeros(4), torch.ones(4), sequences=[0, 0, 0, 1], turns=[0, 0, 1, 0])
    config = GspoConfig(unit=RatioUnit.TURN, clip_low=0.5, clip_high=0.5)
    found, _ = run(Gspo(config), batch)
    torch.testing.assert_close(found, -torch.tensor([0.3, 0.3, -0.1, -0.3]).exp())


def test_a_sequence_beyond_its_range_has_no_gradient_as_a_whole(loss_batch: Batch) -> None:
    logprobs = torch.tensor([0.5, -0.1, 0.5, -0.1]).requires_grad_()
    batch = loss_batch(logprobs, torch.zeros(4), torch.tensor([1.0, 1.0, -1.0, -1.0]), sequences=[0, 0, 1, 1])
    found, gradient = run(Gspo(GspoConfig(clip_low=0.1, clip_high=0.1)), batch)
    s = torch.tensor(0.2).exp().item()
    assert found.tolist() == pytest.approx([-1.1, -1.1, s, s])
    assert gradient.tolist() == pytest.approx([0.0, 0.0, s, s])


def test_with_equal_advantages_the_gradient_is_that_of_the_sequence_form(loss_batch: Batch) -> None:
    """Its objective differentiated numerically: (1 / |y|) sum of the tokens' gradients is that of s_i A."""
    generator = torch.Generator().manual_seed(0)
    old = -torch.rand(6, generator=generator, dtype=torch.float64)
    logprobs = (old + 0.1 * torch.randn(6, generator=generator, dtype=torch.float64)).requires_grad_()
    batch = loss_batch(logprobs, old, torch.full((6,), 1.5, dtype=torch.float64))
    _, gradient = run(Gspo(GspoConfig(clip_low=0.9, clip_high=0.9)), batch)

    def sequence_form(x: torch.Tensor) -> torch.Tensor:
        return -1.5 * (x - old).mean().exp()

    (expected,) = torch.autograd.grad(sequence_form(logprobs), [logprobs])
    torch.testing.assert_close(gradient / 6, expected)
    assert torch.autograd.gradcheck(sequence_form, (logprobs,))


def test_an_extreme_sequence_stays_finite(loss_batch: Batch) -> None:
    logprobs = torch.tensor([200.0, 200.0]).requires_grad_()
    found, gradient = run(Gspo(GspoConfig()), loss_batch(logprobs, torch.zeros(2), torch.tensor([-1.0, -1.0])))
    assert found.isfinite().all() and gradient.isfinite().all()
