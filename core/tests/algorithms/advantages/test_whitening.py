from __future__ import annotations

import torch

from ramet.algorithms.advantages.whitening import whiten


def test_what_is_in_the_mask_gets_mean_0_and_variance_1() -> None:
    values = torch.tensor([[1.0, 9.0, 3.0], [5.0, 7.0, 1e9]])
    mask = torch.tensor([[True, False, True], [True, True, False]])
    found = whiten(values, mask)
    chosen = torch.tensor([1.0, 3.0, 5.0, 7.0])
    torch.testing.assert_close(found[mask], (chosen - 4) / chosen.std())
    assert found[~mask].tolist() == [0.0, 0.0]
    assert values[1, 2].item() == 1e9


def test_equal_values_and_one_value_give_exactly_0() -> None:
    assert not whiten(torch.full((2, 3), 0.1), torch.ones(2, 3, dtype=torch.bool)).count_nonzero()
    assert not whiten(torch.ones(1, 2), torch.tensor([[True, False]])).count_nonzero()
