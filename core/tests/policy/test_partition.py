"""All ranks find the same division of the rows, and pass as often as each other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from ramet.policy.batching.packing import Cost, model_cost
from ramet.policy.batching.partition import RankLayout, own_micro_batches, own_shared_micro_batches, partition
from ramet.policy.batching.rows import Row

MakeRows = Callable[..., list[Row]]
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


def groups(rows: list[Row], *, n_groups: int, n_rollouts: int, prompt: int, response: int) -> list[Row]:
    """Rollouts of these lengths that share nothing but their prompt."""
    rng = np.random.default_rng(0)
    made = []
    for group in range(n_groups):
        question = rng.integers(0, 200, prompt).astype(np.int32)
        for i in range(n_rollouts):
            answer = rng.integers(0, 200, response).astype(np.int32)
            answer[0] = i
            row = replace(rows[0], prompt_ids=question, response_ids=answer, mask=np.ones(response, np.bool_))
            made.append(replace(row, group=group))
    return made


def computed(rows: list[Row], *, ranks: int, budget: int = 16384) -> list[list[int]]:
    """Tokens of the passes of every rank."""
    layouts = [RankLayout(rank=rank, world_size=ranks) for rank in range(ranks)]
    cost = model_cost(256, torch.device("cpu"))
    batches = [own_shared_micro_batches(rows, layout, budget=budget, cost=cost) for layout in layouts]
    assert sorted(i for own in batches for batch in own for i in batch.rows) == list(range(len(rows)))
    return [[batch.n_tokens for batch in own] for own in batches]


def test_a_prompt_that_fills_a_fast_pass_is_not_computed_for_every_rollout(make_rows: MakeRows) -> None:
    """On a CPU 2,048 tokens are fast; 1,500 and eight times 399 in one pass are faster than eight times 1,899."""
    rows = groups(make_rows(1), n_groups=1, n_rollouts=8, prompt=1500, response=400)
    assert computed(rows, ranks=1) == [[1500 + 8 * 399]]
    assert max(computed(rows, ranks=1, budget=3000)[0]) <= 3000  # memory has the last word


def test_little_that_is_shared_is_computed_in_fast_passes(make_rows: MakeRows) -> None:
    rows = groups(make_rows(1), n_groups=1, n_rollouts=16, prompt=20, response=500)
    (passes,) = computed(rows, ranks=1)
    assert len(passes) > 1 and sum(passes) < 1.05 * (20 + 16 * 499)


def test_groups_are_cut_for_other_ranks_only_where_the_busiest_has_less_to_do(make_rows: MakeRows) -> None:
    long = groups(make_rows(1), n_groups=2, n_rollouts=8, prompt=1000, response=50)
    # An even share, 348 tokens, would be every rollout for itself, and 2,098 for each rank instead of 1,392.
    assert max(map(sum, computed(long, ranks=8))) < 1392
    assert max(map(sum, computed(long, ranks=2))) == 1392
    short = groups(make_rows(1), n_groups=1, n_rollouts=8, prompt=20, response=200)
    assert max(map(sum, computed(short, ranks=2))) == 20 + 4 * 199
