"""No difference of log-probabilities, however wild, makes a ratio, a loss or a gradient that is not finite."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.losses.ppo_clip import PpoClip
from ramet.algorithms.ratio import clamped, ratio_of
from ramet.types import LossInputs


def test_a_ratio_is_bounded_and_what_was_bounded_is_told() -> None:
    new = torch.tensor([0.0, -1.0, -200.0, 20.5, 500.0], requires_grad=True)
    ratio = ratio_of(new, torch.zeros(5))
    expected = torch.tensor([0.0, -1.0, -20.0, 20.0, 20.0]).exp()
    torch.testing.assert_close(ratio, expected)
    ratio.sum().backward()
    assert new.grad is not None
    torch.testing.assert_close(new.grad, torch.tensor([1.0, 0.3678794, 0.0, 0.0, 0.0]))
    assert clamped(new, torch.zeros(5)).tolist() == [0.0, 0.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("dual_clip", [None, 3.0])
@pytest.mark.parametrize("difference", [-200.0, 89.0, 200.0])
def test_the_clipped_surrogate_stays_finite(
    loss_batch: Callable[..., LossInputs], difference: float, dual_clip: float | None
) -> None:
    logprobs = torch.full((3,), difference, requires_grad=True)
    batch = loss_batch(logprobs, torch.zeros(3), torch.tensor([1.0, 0.0, -1.0]))
    output = PpoClip(PpoClipConfig(dual_clip=dual_clip))(batch)
    output.per_token.sum().backward()
    assert logprobs.grad is not None and logprobs.grad.isfinite().all()
    assert output.per_token.isfinite().all() and output.metrics["ratio"].isfinite().all()
