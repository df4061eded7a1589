from __future__ import annotations

import torch

from ramet.algorithms.value_loss import value_loss


def test_near_the_old_value_it_is_the_squared_error() -> None:
    loss = value_loss(torch.tensor([1.2, 0.8]), torch.tensor([1.0, 1.0]), torch.tensor([3.0, 0.8]), 0.5)
    torch.testing.assert_close(loss.per_token, torch.tensor([3.24, 0.0]))
    assert loss.clipped.tolist() == [0.0, 0.0]


def test_beyond_the_clip_only_the_way_back_has_a_gradient() -> None:
    """Both values are 2 above the old one. The first return lies further up, the second one at the old value."""
    values = torch.tensor([3.0, 3.0], requires_grad=True)
    loss = value_loss(values, torch.tensor([1.0, 1.0]), torch.tensor([9.0, 1.0]), 0.5)
    loss.per_token.sum().backward()
    torch.testing.assert_close(loss.per_token.detach(), torch.tensor([7.5**2, 2.0**2]))
    assert values.grad is not None and values.grad.tolist() == [0.0, 4.0]
    assert loss.clipped.tolist() == [1.0, 0.0]


def test_within_the_clip_the_gradient_is_that_of_the_square() -> None:
    values = torch.tensor([1.2], requires_grad=True)
    value_loss(values, torch.tensor([1.0]), torch.tensor([2.0]), 0.5).per_token.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([-1.6]))
