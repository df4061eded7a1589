from __future__ import annotations

from collections.abc import Callable

from ramet.algorithms.advantages.rloo import Rloo
from ramet.types import AdvantageInputs

Batch = Callable[..., AdvantageInputs]


def test_the_baseline_is_the_mean_of_the_others(advantage_batch: Batch) -> None:
    found = Rloo()(advantage_batch([1.0, 4.0, 1.0, 9.0, 5.0], [7, 7, 7, 2, 2])).advantages
    assert found[:, 0].tolist() == [-1.5, 3.0, -1.5, 4.0, -4.0]


def test_equal_scores_give_exactly_nothing(advantage_batch: Batch) -> None:
    output = Rloo()(advantage_batch([0.1] * 3, [0] * 3))
    assert not output.advantages.count_nonzero()
    assert output.metrics == {"advantage/rows_without_spread": 1.0}


def test_a_rollout_alone_has_no_baseline(advantage_batch: Batch) -> None:
    assert Rloo()(advantage_batch([2.0], [0])).advantages[:, 0].tolist() == [2.0]
