from __future__ import annotations

from collections.abc import Callable

import pytest

from ramet.algorithms.advantages.config import MaxRlConfig
from ramet.algorithms.advantages.maxrl import MaxRl
from ramet.types import AdvantageInputs

Batch = Callable[..., AdvantageInputs]


def advantages(batch: AdvantageInputs) -> list[float]:
    found: list[float] = MaxRl(MaxRlConfig(eps=1e-12))(batch).advantages[:, 0].tolist()
    return found


def test_one_right_answer_of_four_counts_three_times_a_wrong_one(advantage_batch: Batch) -> None:
    """The values that prime-rl's tests of the estimator have, too (PrimeIntellect-ai/prime-rl pull request 2985)."""
    assert advantages(advantage_batch([1.0, 0.0, 0.0, 0.0], [7] * 4)) == pytest.approx([3.0, -1.0, -1.0, -1.0])


def test_the_right_answers_of_a_hard_task_get_as_much_in_sum_as_those_of_an_easy_one(advantage_batch: Batch) -> None:
    """The estimate of grad log p is the mean score function of the right rollouts, less that of all: (sum of A) / n of
    the right ones is 1 - p.
    """
    found = advantages(advantage_batch([1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0], [0] * 5 + [1] * 5))
    assert found == pytest.approx([4.0, -1.0, -1.0, -1.0, -1.0, 0.25, 0.25, 0.25, 0.25, -1.0])


def test_a_group_without_a_right_answer_has_no_advantage(advantage_batch: Batch) -> None:
    assert not any(advantages(advantage_batch([0.0, 0.0, 1.0, 1.0], [0, 0, 1, 1])))


def test_scores_below_zero_keep_the_order(advantage_batch: Batch) -> None:
    assert advantages(advantage_batch([-3.0, -1.0], [0, 0])) == pytest.approx([-0.5, 0.5])
