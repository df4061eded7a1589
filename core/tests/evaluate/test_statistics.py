from __future__ import annotations

import math
import random
from itertools import combinations
from statistics import fmean, stdev

import pytest

from ramet.evaluate.statistics import avg_at_k, maj_at_k, pass_at_k, pass_probability, student_t, summarise


def test_avg_at_k_of_two_tasks_by_hand() -> None:
    # task means 0.75 and 0.25: mean 0.5, standard error sqrt((0.0625 + 0.0625) / 2) = 0.25, t(1) = 12.706
    found = avg_at_k({"a": [1, 1, 1, 0], "b": [0, 0, 0, 1]})
    assert (found.mean, found.n_tasks) == (0.5, 2)
    assert found.standard_error == pytest.approx(0.25)
    assert found.half_width == pytest.approx(12.7062 * 0.25, rel=1e-5)


def test_masked_rollouts_are_left_out_and_never_count_as_wrong() -> None:
    with_masks = avg_at_k({"a": [1, None, 1, 0], "b": [None, 0, None, None], "c": [1, 0, 1, 0]})
    without = avg_at_k({"a": [1, 1, 0], "b": [0], "c": [1, 0, 1, 0]})
    assert with_masks == without
    assert with_masks.mean == pytest.approx((2 / 3 + 0 + 0.5) / 3)


def test_bounds_say_what_missing_rollouts_could_change() -> None:
    scores = {"a": [1.0, None], "b": [0.0, 1.0], "c": [None, None]}
    found = summarise("accuracy", scores, {task: [None, None] for task in scores}, k=2)
    assert found.avg.mean == 0.75 and found.bounds == (pytest.approx(1 / 3), pytest.approx(5 / 6))
    assert summarise("accuracy", {"a": [1.0]}, {"a": [None]}, k=1).bounds is None


def test_a_task_counts_once_however_many_of_its_rollouts_are_valid() -> None:
    assert avg_at_k({"a": [1.0], "b": [0.0] * 7}).mean == 0.5


def test_a_task_without_any_valid_rollout_is_not_in_the_mean() -> None:
    found = avg_at_k({"a": [1.0, 1.0], "b": [None, None]})
    assert (found.mean, found.n_tasks, found.half_width) == (1.0, 1, None)
    assert avg_at_k({"a": [None]}).mean is None
    assert avg_at_k({}).mean is None


def test_equal_rollouts_of_a_task_do_not_shrink_the_interval() -> None:
    rows = {str(i): [float(i % 3 == 0)] for i in range(30)}
    copies = {task: row * 16 for task, row in rows.items()}
    assert avg_at_k(rows).standard_error == pytest.approx(avg_at_k(copies).standard_error)
    assert avg_at_k(rows).standard_error == pytest.approx(stdev(fmean(r) for r in rows.values()) / math.sqrt(30))


def test_with_equal_numbers_of_rollouts_it_is_the_cluster_robust_error_with_its_small_sample_factor() -> None:
    rng = random.Random(4)
    rows = {str(i): [float(rng.random() < 0.2 + 0.6 * (i % 2)) for _ in range(5)] for i in range(12)}
    mean = fmean(score for row in rows.values() for score in row)
    sandwich = sum(sum(score - mean for score in row) ** 2 for row in rows.values()) / (12 * 5) ** 2
    assert avg_at_k(rows).standard_error == pytest.approx(math.sqrt(sandwich * 12 / 11))


def test_the_interval_covers_the_truth_about_95_times_in_100() -> None:
    rng = random.Random(7)
    covered = 0
    for _ in range(400):
        chances = [rng.random() for _ in range(10)]
        found = avg_at_k({str(i): [float(rng.random() < p) for _ in range(4)] for i, p in enumerate(chances)})
        assert found.mean is not None and found.half_width is not None
        covered += abs(found.mean - 0.5) <= found.half_width
    assert 0.92 <= covered / 400 <= 0.98


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (9, 2.26216), (29, 2.04523), (30, 2.04227), (120, 1.97993)],
)
def test_students_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert student_t(freedom) == pytest.approx(quantile, abs=1e-5)


def test_students_quantile_goes_over_into_the_normal_one() -> None:
    assert student_t(10_000) == pytest.approx(student_t(10_001), abs=3e-4)
    assert student_t(10_001) == pytest.approx(1.959964, abs=1e-6)


def test_pass_probability_equals_the_share_of_subsets_that_hold_a_right_rollout() -> None:
    for n in range(1, 8):
        for c in range(n + 1):
            outcomes = [True] * c + [False] * (n - c)
            for k in range(1, n + 1):
                subsets = list(combinations(outcomes, k))
                assert pass_probability(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_k_by_hand() -> None:
    # a: 2 of 4 right, 1 - C(2,2)/C(4,2) = 5/6; b: none right, 0
    found = pass_at_k({"a": [1, 0, 1, 0], "b": [0, 0, 0, 0]}, 2)
    assert found.estimate.mean == pytest.approx((5 / 6 + 0) / 2)
    assert pass_at_k({"a": [0, 0, 0, 0, 1]}, 5).estimate.mean == 1.0


def test_tasks_with_fewer_than_k_valid_rollouts_are_named_and_not_counted() -> None:
    found = pass_at_k({"a": [1, 0, 0], "b": [0, None, 0], "c": [None, None, None]}, 3)
    assert found.short_tasks == ("b", "c")
    assert (found.estimate.mean, found.estimate.n_tasks) == (1.0, 1)


def test_a_partial_score_is_no_pass() -> None:
    assert pass_at_k({"a": [0.99, 0.5]}, 2).estimate.mean == 0.0
    assert pass_at_k({"a": [0.1 + 0.2 + 0.7, 0.5]}, 2).estimate.mean == 1.0


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_probability(n, c, k)


def test_a_summary_says_how_many_were_judged() -> None:
    answers = {"a": ["4", "4", "5", "4 ", None], "b": [None] * 5}
    found = summarise("accuracy", {"a": [1, None, 0, 1, 0], "b": [None] * 5}, answers, k=5)
    assert (found.n_judged, found.n_rollouts, found.n_tasks, found.unjudged_tasks) == (4, 10, 2, ("b",))
    assert [one.k for one in found.passes] == [1, 2, 4, 5]
    assert [one.short_tasks for one in found.passes] == [("b",), ("b",), ("b",), ("a", "b")]
    assert found.passes[0].estimate.mean == found.avg.mean == 0.5
    assert (found.maj.mean, found.maj.n_tasks) == (1.0, 1)
    assert [p.k for p in summarise("accuracy", {"a": [1.0] * 5}, {"a": ["4"] * 5}, k=5, pass_at=[5, 3]).passes] == [
        3,
        5,
    ]


@pytest.mark.parametrize(
    ("scores", "answers", "expected"),
    [
        ([1.0, 0.0, 1.0], ["Paris", "Rome", " paris "], 1.0),
        ([0.0, 1.0, 0.0], ["Rome", "Paris", "Rome"], 0.0),
        ([1.0, 0.0], ["Paris", "Rome"], 0.5),  # as common: the mean
        ([0.0, 0.0, 1.0], [None, None, "Paris"], 1.0),  # no answer is no vote
        ([None, 1.0, None], ["Rome", "Paris", "Rome"], 1.0),  # nor is what was not judged
        ([0.25, 0.75], [None, None], 0.5),
        ([None, None], ["Rome", "Rome"], None),
    ],
)
def test_maj_is_the_score_of_the_commonest_answer(
    scores: list[float | None], answers: list[str | None], expected: float | None
) -> None:
    assert maj_at_k({"a": scores}, {"a": answers}).mean == expected
