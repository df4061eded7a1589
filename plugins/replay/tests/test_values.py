"""Intervals of values and of their differences, against published numbers."""

from __future__ import annotations

import pytest

from ramet_replay.credit.values import Value, difference, known, value_of, wilson

BINARY = [0.0, 1.0]


def test_a_share_has_wilsons_interval() -> None:
    """Newcombe (1998), Stat. Med. 17, 857-872, table I: 81 of 263, by method 3."""
    assert wilson(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)


def test_two_shares_have_newcombes_interval() -> None:
    """Newcombe (1998), Stat. Med. 17, 873-890, table II: 56/70 - 48/80, by method 10."""
    first = value_of([1.0] * 56 + [0.0] * 14, BINARY)
    second = value_of([1.0] * 48 + [0.0] * 32, BINARY)
    assert first is not None and second is not None
    found = difference(second, first)
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)


def test_an_end_is_known_and_takes_nothing_from_the_certainty() -> None:
    before = value_of([0.0, 1.0, 1.0, 1.0], BINARY)
    assert before is not None and before.low is not None and before.high is not None
    found = difference(before, known(1.0))
    assert (found.low, found.high) == pytest.approx((1 - before.high, 1 - before.low))


def test_rewards_of_several_kinds_have_students_interval() -> None:
    """t(2 degrees of freedom, 97.5 %) is 4.3027; the standard error of 0.1, 0.2, 0.3 is 0.1/sqrt(3)."""
    value = value_of([0.1, 0.2, 0.3], [0.1, 0.2, 0.3])
    assert value is not None and value.low is not None
    assert value.mean - value.low == pytest.approx(4.3027 * 0.1 / 3**0.5, abs=1e-4)


def test_without_a_second_kind_of_reward_nothing_is_known_of_the_spread() -> None:
    assert value_of([], BINARY) is None
    assert value_of([1.0, 1.0], [1.0]) == Value(mean=1.0, low=None, high=None)
    equal = value_of([1.0, 1.0], [0.0, 0.5, 1.0])
    assert equal is not None and equal.low == pytest.approx(wilson(1.0, 2)[0])
