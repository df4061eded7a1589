from __future__ import annotations

import torch

from ramet.algorithms.offpolicy import truncated_weights


def test_a_weight_is_the_truncated_ratio_of_trainer_to_engine() -> None:
    old = torch.tensor([-1.0, -1.0, 0.0])
    engine = torch.tensor([-1.0, -0.5, -3.0])
    found = truncated_weights(old, engine, 2.0)
    torch.testing.assert_close(found.weight, torch.tensor([1.0, 0.6065306597, 2.0]))
    assert found.truncated.tolist() == [0.0, 0.0, 1.0]


def test_weights_carry_no_gradient() -> None:
    old = torch.zeros(3, requires_grad=True)
    assert not truncated_weights(old, torch.ones(3), 2.0).weight.requires_grad


def test_without_a_cap_there_is_no_correction() -> None:
    found = truncated_weights(torch.zeros(2), torch.tensor([5.0, -5.0]), None)
    assert found.weight.tolist() == [1.0, 1.0]
    assert found.truncated.tolist() == [0.0, 0.0]
