from __future__ import annotations

import itertools

import pytest

from ramet_benchmarks.arithmetic import shuffled


@pytest.mark.parametrize("n", [1, 2, 3, 10, 100, 1000, 4097])
def test_every_number_comes_exactly_once(n: int) -> None:
    assert sorted(shuffled(n, 7)) == list(range(n))


def test_the_seed_decides_the_order() -> None:
    first, again, other = (list(shuffled(1000, seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert sum(a == b for a, b in zip(first, other, strict=True)) < 20


def test_a_space_of_trillions_needs_no_memory() -> None:
    head = list(itertools.islice(shuffled(10**13, 1), 100))
    assert len(set(head)) == 100 and max(head) > 10**12


def test_the_order_stays_the_same_over_releases() -> None:
    assert list(shuffled(10, 1)) == [5, 3, 7, 9, 6, 2, 4, 0, 8, 1]
