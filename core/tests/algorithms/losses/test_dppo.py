from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.losses.config import Divergence, DppoConfig
from ramet.algorithms.losses.dppo import Dppo, divergence
from ramet.types import LossInputs

Batch = Callable[..., LossInputs]


@pytest.mark.parametrize(
    ("old", "new", "advantage", "kept"),
    [
        (0.5, 0.65, 1.0, True),
        (0.5, 0.75, 1.0, False),  # rose by more than bound_high, as the advantage asks
        (0.5, 0.75, -1.0, True),  # against it: brought back
        (0.5, 0.35, -1.0, False),  # fell by more than bound_low
        (0.5, 0.35, 1.0, True),
        (0.001, 0.1, 1.0, True),  # a ratio of 100 is no far move
    ],
)
def test_a_token_that_moved_too_far_in_its_direction_is_left_out(
    loss_batch: Batch, old: float, new: float, advantage: float, kept: bool
) -> None:
    logprobs = torch.tensor([new]).log().requires_grad_()
    loss = Dppo(DppoConfig(bound_low=0.1, bound_high=0.2))
    output = loss(loss_batch(logprobs, torch.tensor([old]).log(), torch.tensor([advantage])))
    (gradient,) = torch.autograd.grad(output.per_token.sum(), [logprobs])
    assert gradient.item() == pytest.approx(-advantage * min(new / old, 20) * kept, rel=1e-5)
    assert output.metrics["clip_fraction"].item() == float(not kept)


def test_divergences_by_hand() -> None:
    new, old = torch.tensor([0.75, 0.1]).log(), torch.tensor([0.5, 0.1]).log()
    assert divergence(new, old, Divergence.TV).tolist() == pytest.approx([0.25, 0.0])
    # 0.5 ln(0.5 / 0.75) + 0.5 ln(0.5 / 0.25)
    assert divergence(new, old, Divergence.KL).tolist() == pytest.approx([0.1438410, 0.0], abs=1e-6)
    certain = divergence(torch.zeros(1), torch.tensor([-3.0]), Divergence.KL)
    assert certain.isfinite().all()
