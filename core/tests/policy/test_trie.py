"""The trie of any sequences: every prefix once, everything found again, and attention that sees the path."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ramet.policy.batching.attention_plan import AttentionPlan, Run, attention_plan
from ramet.policy.batching.rows import Ids
from ramet.policy.batching.trie import Trie, trie

SEEDS = range(40)


def random_sequences(seed: int) -> list[Ids]:
    """Few letters, so that prefixes are shared by chance; some are forks at a random place, some duplicates."""
    rng = np.random.default_rng(seed)
    found: list[Ids] = []
    for _ in range(int(rng.integers(1, 12))):
        own = rng.integers(0, 3, int(rng.integers(1, 12))).astype(np.int32)
        if found and rng.random() < 0.6:
            parent = found[int(rng.integers(len(found)))]
            own = np.concatenate([parent[: int(rng.integers(0, len(parent) + 1))], own[int(rng.integers(0, 2)) :]])
        found.append(own if len(own) else found[0])
    return found


def prefixes(sequences: list[Ids]) -> set[tuple[int, ...]]:
    """The nodes of the trie, made the slow way."""
    return {tuple(sequence[: n + 1].tolist()) for sequence in sequences for n in range(len(sequence))}


def packed(sequences: list[Ids], found: Trie) -> Ids:
    row = np.full(found.n_tokens, -1, np.int32)
    for index, place in zip(found.order, found.positions(), strict=True):
        row[place] = sequences[index]
    return row


@pytest.mark.parametrize("seed", SEEDS)
def test_every_prefix_has_one_position_and_every_sequence_finds_its_tokens(seed: int) -> None:
    sequences = random_sequences(seed)
    found = trie(sequences)
    nodes = prefixes(sequences)
    row = packed(sequences, found)
    assert found.n_tokens == len(nodes) and found.n_pairs == sum(map(len, nodes))
    assert (row >= 0).all()
    seen: dict[int, tuple[int, ...]] = {}
    for index, place in zip(found.order, found.positions(), strict=True):
        assert row[place].tolist() == sequences[index].tolist()
        for n, position in enumerate(place.tolist()):
            assert seen.setdefault(position, tuple(sequences[index][: n + 1].tolist())) == tuple(
                sequences[index][: n + 1].tolist()
            )
    assert set(seen.values()) == nodes


@pytest.mark.parametrize("budget", [1, 7, 20, 1000])
@pytest.mark.parametrize("seed", SEEDS[:10])
def test_parts_hold_every_sequence_once_within_the_budget(seed: int, budget: int) -> None:
    sequences = random_sequences(seed)
    parts = trie(sequences).cut(budget)
    assert sorted(i for part in parts for i in part.order) == list(range(len(sequences)))
    for part in parts:
        alone = trie([sequences[i] for i in part.order])
        assert (part.n_tokens, part.n_pairs) == (alone.n_tokens, alone.n_pairs)
        assert part.n_tokens <= budget or part.n_tokens == max(part.lengths)
    if budget == 1000:
        assert len(parts) == 1


def test_copies_of_a_sequence_over_the_budget_are_computed_with_it() -> None:
    long = np.arange(30, dtype=np.int32)
    parts = trie([long, long.copy(), long[:10]]).cut(15)
    assert [(part.order, part.n_tokens) for part in parts] == [((2,), 10), ((0, 1), 30)]


def test_parts_gather_no_more_keys_than_allowed() -> None:
    """A long path with many short forks: each gathers the whole path."""
    path = np.arange(100, dtype=np.int32)
    forks = [np.concatenate([path, np.array([200 + i], np.int32)]) for i in range(50)]
    whole = trie(forks)
    assert (whole.n_tokens, whole.n_keys) == (150, 50 * 101)
    parts = whole.cut(1000, most_keys=1010)
    assert [part.n_keys for part in parts] == [1010] * 5 and [part.n_tokens for part in parts] == [110] * 5


def visible(plan: AttentionPlan) -> dict[int, set[int]]:
    """The positions that each position sees, by what the calls would be given."""
    out: dict[int, set[int]] = {}
    queries = plan.queries.split([call.n_runs * call.n_queries for call in plan.calls])
    keys = plan.keys.split([call.n_runs * call.n_keys for call in plan.calls])
    kept = set(plan.results.tolist())
    first = 0
    for call, own, path in zip(plan.calls, queries, keys, strict=True):
        mask = call.seen(torch.device("cpu"))
        mask = torch.ones(call.n_queries, call.n_keys, dtype=torch.bool).tril() if mask is None else mask
        mask = mask.expand(call.n_runs, 1, call.n_queries, call.n_keys)[:, 0]
        assert mask.any(-1).all(), "a softmax over nothing"
        for run, (row, columns) in enumerate(zip(own.view(call.n_runs, -1), path.view(call.n_runs, -1), strict=True)):
            for i, position in enumerate(row.tolist()):
                if first + run * call.n_queries + i in kept:
                    assert position not in out
                    chosen = columns[mask[run, i]].tolist()
                    assert len(set(chosen)) == len(chosen), "a key is seen twice"
                    out[position] = set(chosen)
        first += call.n_runs * call.n_queries
    assert [int(plan.queries[i]) for i in plan.results.tolist()] == list(range(len(plan.results)))
    return out


@pytest.mark.parametrize("call_pairs", [0, 30, 10_000])
@pytest.mark.parametrize("seed", SEEDS[:20])
def test_every_token_sees_its_path_and_nothing_else_however_runs_share_calls(seed: int, call_pairs: float) -> None:
    found = trie(random_sequences(seed))
    places = found.positions()
    runs = [Run(p, len(p) - shared) for p, shared in zip(places, found.shared, strict=True) if len(p) > shared]
    plan = attention_plan(runs, call_pairs=call_pairs)
    expected = {int(place[n]): set(place[: n + 1].tolist()) for place in places for n in range(len(place))}
    assert visible(plan) == expected
    if call_pairs == 10_000:
        assert len(plan.calls) <= 2
    if call_pairs == 0:  # no padding
        assert len(plan.queries) == found.n_tokens


def test_large_token_ids_are_in_the_order_of_numbers() -> None:
    ids = [np.array(x, np.int32) for x in ([1, 151_645], [1, 255], [1, 256, 7], [1, 256])]
    found = trie(ids)
    assert found.order == (1, 3, 2, 0) and found.shared == (0, 1, 2, 1) and found.n_tokens == 5


def test_no_sequences_are_no_trie() -> None:
    found = trie([])
    assert (found.n_tokens, found.n_pairs, found.positions(), found.cut(5)) == (0, 0, [], [])
