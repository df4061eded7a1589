"""All ranks find the same division of the rows, and pass as often as each other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain

import pytest

from ramet.policy.batching.packing import Cost
from ramet.policy.batching.partition import RankLayout, own_micro_batches, partition
from ramet.policy.batching.rows import Row

COST = Cost(token=6.0 * 32, pair=1.0, best_tokens=sys.maxsize)


def test_partitions_by_hand() -> None:
    assert partition([7, 3, 5, 4], 2) == [[0, 1], [2, 3]]
    assert partition([1, 1, 1], 2) == [[0, 2], [1]]
    assert partition([9], 3) == [[0], [], []]
    assert partition([], 2) == [[], []]


@pytest.mark.parametrize("n_parts", [1, 2, 5])
def test_no_part_costs_more_than_graham_allows(n_parts: int) -> None:
    costs = [float((i * 37) % 101 + 1) for i in range(40)]
    found = partition(costs, n_parts)
    assert sorted(chain(*found)) == list(range(40)) and all(part == sorted(part) for part in found)
    bound = max(max(costs), sum(costs) / n_parts)  # of the best partition
    assert max(sum(costs[i] for i in part) for part in found) <= 4 / 3 * bound


@pytest.mark.parametrize("sequence_parallel", [1, 2])
@pytest.mark.parametrize("n_rows", [1, 3, 12])
def test_every_row_is_computed_by_one_part_and_all_make_as_many_passes(
    make_rows: Callable[..., list[Row]], n_rows: int, sequence_parallel: int
) -> None:
    rows = make_rows(n_rows)
    layouts = [RankLayout(rank=rank, world_size=4, sequence_parallel=sequence_parallel) for rank in range(4)]
    found = [own_micro_batches(rows, layout, budget=30, cost=COST, row_cost=COST) for layout in layouts]
    assert len({len(batches) for batches in found}) == 1
    passed = [[i for batch in batches for i in batch.rows] for batches in found]
    reported = [own for own, layout in zip(passed, layouts, strict=True) if layout.is_first_of_group]
    assert sorted(chain(*reported)) == list(range(n_rows))
    assert [passed[layout.rank - layout.rank % sequence_parallel] for layout in layouts] == passed
    for batch in chain(*found):
        assert batch.n_tokens == sum(rows[i].n_tokens - 1 for i in batch.rows)
        assert batch.lengths == tuple(len(rows[i].response_ids) for i in batch.rows)


def test_a_long_row_is_one_part_and_the_short_ones_the_other(make_rows: Callable[..., list[Row]]) -> None:
    rows = [*make_rows(8, longest=10), *make_rows(1, seed=3, longest=200)]
    first, second = (
        own_micro_batches(rows, RankLayout(rank=rank, world_size=2), budget=4096, cost=None, row_cost=COST)
        for rank in (0, 1)
    )
    assert [batch.rows for batch in first] == [(8,)]
    assert sorted(chain(*(batch.rows for batch in second))) == list(range(8))
