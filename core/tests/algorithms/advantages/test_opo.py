from __future__ import annotations

from collections.abc import Callable

import torch

from ramet.algorithms.advantages.opo import Opo
from ramet.types import AdvantageInputs

Batch = Callable[..., AdvantageInputs]


def test_long_rollouts_count_more_in_the_baseline(advantage_batch: Batch) -> None:
    mask = torch.tensor([[True, False, False], [True, True, True]])
    found = Opo()(advantage_batch([4.0, 0.0], [0, 0], mask)).advantages
    assert found.tolist() == [[3.0, 0.0, 0.0], [-1.0, -1.0, -1.0]]  # baseline (1 * 4 + 3 * 0) / 4


def test_equal_scores_and_rollouts_without_tokens_give_exactly_nothing(advantage_batch: Batch) -> None:
    assert not Opo()(advantage_batch([0.1] * 3, [0] * 3)).advantages.count_nonzero()
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert not Opo()(advantage_batch([1.0, 0.0], [0, 0], nothing)).advantages.count_nonzero()
