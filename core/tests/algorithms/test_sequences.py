from __future__ import annotations

import torch

from ramet.algorithms.sequences import turns_of_sequences, unit_means, unit_sums

VALUES = torch.tensor([1.0, float("nan"), 3.0, 5.0, 7.0])
MASK = torch.tensor([True, False, True, True, False])
UNITS = torch.tensor([4, 4, 4, 9, 2])


def test_every_token_gets_the_sum_and_the_mean_of_its_unit() -> None:
    assert unit_sums(VALUES, MASK, UNITS).tolist() == [4.0, 4.0, 4.0, 5.0, 0.0]
    assert unit_means(VALUES, MASK, UNITS).tolist() == [2.0, 2.0, 2.0, 5.0, 0.0]


def test_what_is_outside_the_mask_gets_no_gradient() -> None:
    values = VALUES.nan_to_num(float("inf")).requires_grad_()
    (gradient,) = torch.autograd.grad(unit_means(values, MASK, UNITS)[MASK].sum(), [values])
    assert gradient.tolist() == [1.0, 0.0, 1.0, 1.0, 0.0]


def test_turns_of_different_sequences_are_different_units() -> None:
    names = turns_of_sequences(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([-1, 0, 1, -1, 0]))
    assert len(set(names.tolist())) == 5
    assert turns_of_sequences(torch.tensor([], dtype=torch.int64), torch.tensor([], dtype=torch.int64)).numel() == 0
