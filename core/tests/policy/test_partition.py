"""All ranks find the same division of the rows, and pass as often as each other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain

import pytest

from ramet.policy.batching.batch import Row
from ramet.policy.batching.packing import Cost
from ramet.policy.batching.partition import RankLayout, divide, own_micro_batches

COST = Cost(token=6.0 * 32, pair=1.0, best_tokens=sys.maxsize)


def test_shares_by_hand() -> None:
    assert divide([7, 3, 5, 4], 2) == [[0, 1], [2, 3]]
    assert divide([1, 1, 1], 2) == [[0, 2], [1]]
    assert divide([9], 3) == [[0], [], []]
    assert divide([], 2) == [[], []]


@pytest.mark.parametrize("shares", [1, 2, 5])
def test_no_share_is_longer_than_graham_allows(shares: int) -> None:
    costs = [float((i * 37) % 101 + 1) for i in range(40)]
    found = divide(costs, shares)
    assert sorted(chain(*found)) == list(range(40)) and all(share == sorted(share) for share in found)
    bound = max(max(costs), sum(costs) / shares)  # of the best division
    assert max(sum(costs[i] for i in share) for share in found) <= 4 / 3 * bound


@pytest.mark.parametrize("sequence_parallel", [1, 2])
@pytest.mark.parametrize("n_rows", [1, 3, 12])
def test_every_row_is_passed_by_one_share_and_all_pass_as_often(
    make_rows: Callable[..., list[Row]], n_rows: int, sequence_parallel: int
) -> None:
    rows = make_rows(n_rows)
    places = [RankLayout(rank=rank, world_size=4, sequence_parallel=sequence_parallel) for rank in range(4)]
    found = [own_micro_batches(rows, place, budget=30, cost=COST, row_cost=COST) for place in places]
    assert len({len(batches) for batches in found}) == 1
    passed = [[i for batch in batches for i in batch.rows] for batches in found]
    speaking = [own for own, place in zip(passed, places, strict=True) if place.counts]
    assert sorted(chain(*speaking)) == list(range(n_rows))
    assert [passed[place.rank - place.rank % sequence_parallel] for place in places] == passed
    for batch in chain(*found):
        assert batch.n_tokens == sum(rows[i].n_tokens - 1 for i in batch.rows)
        assert batch.lengths == tuple(len(rows[i].response_ids) for i in batch.rows)


def test_a_long_row_stands_alone_against_the_short_ones(make_rows: Callable[..., list[Row]]) -> None:
    rows = [*make_rows(8, longest=10), *make_rows(1, seed=3, longest=200)]
    first, second = (
        own_micro_batches(rows, RankLayout(rank=rank, world_size=2), budget=4096, cost=None, row_cost=COST)
        for rank in (0, 1)
    )
    assert [batch.rows for batch in first] == [(8,)]
    assert sorted(chain(*(batch.rows for batch in second))) == list(range(8))
