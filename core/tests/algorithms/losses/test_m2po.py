from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from ramet.algorithms.losses.config import M2poConfig
from ramet.algorithms.losses.m2po import M2po
from ramet.types import LossInputs

Batch = Callable[..., LossInputs]
UP, DOWN = math.log(1.5), math.log(0.5)


def test_the_farthest_tokens_are_left_out_until_the_rest_moved_little_on_average(loss_batch: Batch) -> None:
    """Log ratios 0.1, 0.2, 0.3 and 0.5: their squares 0.01, 0.04, 0.09, 0.25 have running means 0.01, 0.025, 0.047."""
    moved = torch.tensor([0.3, 0.1, 0.5, 0.2]).requires_grad_()
    batch = loss_batch(moved, torch.zeros(4), torch.ones(4))
    found = M2po(M2poConfig(budget=0.04))(batch)
    assert found.per_token.tolist() == pytest.approx([0.0, -math.exp(0.1), 0.0, -math.exp(0.2)])
    assert found.metrics["clip_fraction"].tolist() == [1.0, 0.0, 1.0, 0.0]
    (gradient,) = torch.autograd.grad(found.per_token.sum(), moved)
    assert gradient.tolist() == pytest.approx([0.0, -math.exp(0.1), 0.0, -math.exp(0.2)])
    wider = M2po(M2poConfig(budget=0.05))(batch).metrics["clip_fraction"]
    assert wider.tolist() == [0.0, 0.0, 1.0, 0.0]  # (0.01 + 0.04 + 0.09) / 3 = 0.0467


def test_only_tokens_that_moved_with_their_advantage_count(loss_batch: Batch) -> None:
    """A ratio of 1.5 with a negative advantage, or of 0.5 with a positive one, is on its way back."""
    logprobs = torch.tensor([UP, DOWN, UP, DOWN])
    found = M2po(M2poConfig())(loss_batch(logprobs, torch.zeros(4), torch.tensor([-1.0, 1.0, 1.0, -1.0])))
    assert found.per_token.tolist() == pytest.approx([1.5, -0.5, 0.0, 0.0])


def test_one_sequence_does_not_use_the_budget_of_another(loss_batch: Batch) -> None:
    logprobs, ones = torch.tensor([0.3, 0.1, 0.3, 0.3, 0.1]), torch.ones(5)
    mask = torch.tensor([True, True, True, True, False])
    found = M2po(M2poConfig(budget=0.051))(loss_batch(logprobs, torch.zeros(5), ones, mask, [0, 0, 1, 1, 1]))
    # Sequence 0: (0.01 + 0.09) / 2 is within the budget. Sequence 1: 0.09 is over it, and its last token is masked.
    assert found.metrics["clip_fraction"][:4].tolist() == [0.0, 0.0, 1.0, 1.0]
