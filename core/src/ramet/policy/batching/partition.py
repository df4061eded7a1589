"""Partition of rows over ranks: every rank is given all rows and computes the same partition, without exchange.

Rows are partitioned by their cost, tokens and pairs of positions in attention: most expensive first, to the part with
the least so far (Graham's rule: the largest part is at most 4/3 of the best partition's). All ranks then make the same
number of passes, since each pass is a collective under FSDP; a rank with fewer micro-batches passes empty ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from ramet.config.schema import PolicyConfig, TrainConfig
from ramet.policy.batching.packing import Cost, MicroBatch, PackedLayout, TokenRow, empty_micro_batch, micro_batch, plan
from ramet.policy.batching.rows import Row
from ramet.policy.batching.shared import Tree, group_tries, groups_of, shared_micro_batch, tree_bins, trees
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.batching.trie import Trie

MOST_KEYS = 8  # of a micro-batch, for each token of its budget: what attention gathers is memory that a budget bounds
FINER = 0.8  # each limit that is tried, of the one before


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """A rank among all: `sequence_parallel` consecutive ranks share sequences, and are one data-parallel rank. The
    ranks of each of the `replicas`, consecutive too, have the complete weights together.
    """

    rank: int
    world_size: int
    sequence_parallel: int = 1
    replicas: int = 1

    @classmethod
    def of(cls, policy: PolicyConfig, *, rank: int, world_size: int) -> RankLayout:
        return cls(
            rank=rank, world_size=world_size, sequence_parallel=policy.sequence_parallel, replicas=policy.replicas
        )

    @property
    def data_parallel_rank(self) -> int:
        return self.rank // self.sequence_parallel

    @property
    def data_parallel_size(self) -> int:
        return self.world_size // self.sequence_parallel

    @property
    def replica(self) -> int:
        return self.replica_of(self.rank)

    def replica_of(self, rank: int) -> int:
        return rank * self.replicas // self.world_size

    @property
    def is_first_of_group(self) -> bool:
        """Whether this rank reports: the first of the ranks with the same rows, so that nothing is counted twice."""
        return self.rank % self.sequence_parallel == 0


def minibatches(n_rows: int, train: TrainConfig, *, seed: int, step: int) -> list[list[int]]:
    """Indices of every optimiser step of one training step, over all epochs. Shuffled by (seed, step, epoch)."""
    out: list[list[int]] = []
    for epoch in range(train.epochs):
        order = list(range(n_rows))
        if train.minibatches > 1:
            Random(f"minibatches:{seed}:{step}:{epoch}").shuffle(order)
        cuts = [n_rows * i // train.minibatches for i in range(train.minibatches + 1)]
        out.extend(order[a:b] for a, b in pairwise(cuts) if b > a)
    return out


def drawn_rows(batch: TrainBatch, train: TrainConfig, *, seed: int, step: int, whole_groups: bool) -> list[list[int]]:
    """Return the rows of every optimiser step, drawn by `minibatches` as rollouts or as complete groups.

    Where there are fewer groups than `train.minibatches`, rollouts are drawn nevertheless: how many optimiser steps a
    step has does not depend on the drawn rows.
    """
    units = groups_of(batch.rows) if whole_groups else []
    if len(units) < train.minibatches:
        units = batch.by_rollout()
    order = minibatches(len(units), train, seed=seed, step=step)
    return [[row for unit in drawn for row in units[unit]] for drawn in order]


def partition(costs: Sequence[float], n_parts: int) -> list[list[int]]:
    """Indices of each part, ascending. Deterministic; equal costs go by index."""
    out: list[list[int]] = [[] for _ in range(n_parts)]
    loads = [0.0] * n_parts
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        least = loads.index(min(loads))
        out[least].append(index)
        loads[least] += costs[index]
    return [sorted(part) for part in out]


def own_micro_batches(
    rows: Sequence[TokenRow], ranks: RankLayout, *, budget: int, cost: Cost | None, row_cost: Cost
) -> list[MicroBatch]:
    """This rank's micro-batches; their `rows` are indices into `rows`. As many on every rank.

    `cost` chooses layouts (see `micro_batches`), `row_cost` is what one sequence costs.
    """
    lengths = [row.n_tokens - 1 for row in rows]
    # The plans of all parts, since every rank must know how many passes the busiest one makes.
    plans = plans_of_parts(lengths, ranks.data_parallel_size, budget=budget, cost=cost, row_cost=row_cost)
    own_plan = plans[ranks.data_parallel_rank]
    return _as_many([micro_batch(rows, indices, layout) for indices, layout in own_plan], plans)


def plans_of_parts(
    lengths: Sequence[int], n_parts: int, *, budget: int, cost: Cost | None, row_cost: Cost
) -> list[list[tuple[list[int], PackedLayout]]]:
    """Return the passes of each part: which sequences share one, by index into `lengths`, and their layout in it."""
    parts = partition([row_cost.packed([length]) for length in lengths], n_parts)
    plans = [plan([lengths[i] for i in part], budget=budget, cost=cost) for part in parts]
    return [
        [([part[i] for i in indices], layout) for indices, layout in passes]
        for part, passes in zip(parts, plans, strict=True)
    ]


def own_shared_micro_batches(rows: Sequence[Row], ranks: RankLayout, *, budget: int, cost: Cost) -> list[MicroBatch]:
    """Return this rank's micro-batches with every prefix computed once."""
    plans = plans_of_groups(group_tries(rows), ranks.data_parallel_size, budget=budget, cost=cost)
    own = [[row for tree in members for row in tree.rows] for members in plans[ranks.data_parallel_rank]]
    return _as_many([shared_micro_batch(rows, indices, cost) for indices in own], plans)


def plans_of_groups(groups: Sequence[Trie], n_parts: int, *, budget: int, cost: Cost) -> list[list[list[Tree]]]:
    """Return the passes of each part: the trees that share one.

    Groups go to parts by their unique tokens and pairs. Groups that are too large for one micro-batch are cut. Others
    are cut if the busiest part then has less to compute, though each piece computes the common prefix.
    """
    most_keys = MOST_KEYS * budget
    parts = _least_load(groups, n_parts, budget=budget, most_keys=most_keys, cost=cost)
    return [tree_bins(part, min(budget, cost.best_tokens), most_keys) for part in parts]


def _least_load(groups: Sequence[Trie], n_parts: int, *, budget: int, most_keys: float, cost: Cost) -> list[list[Tree]]:
    """Each part's trees, under the largest of the tried limits for which the most expensive part costs least."""
    divisions: list[list[list[Tree]]] = []
    for limit in _limits(groups, n_parts, budget=budget, cost=cost):
        all_trees = trees(groups, budget=limit, cost=cost, most_keys=most_keys)
        divisions.append(
            [[all_trees[i] for i in part] for part in partition([tree.cost for tree in all_trees], n_parts)]
        )
    return min(divisions, key=lambda parts: max(sum(tree.cost for tree in part) for part in parts))


def _limits(groups: Sequence[Trie], n_parts: int, *, budget: int, cost: Cost) -> list[int]:
    """Unique tokens of a tree, descending: from as many as fit, to half of an even share or of the fast number for one
    pass.
    """
    even = sum(group.n_tokens for group in groups) / n_parts
    limits = [min(budget, max((group.n_tokens for group in groups), default=0))]
    while limits[-1] > min(even, cost.best_tokens) / 2:
        limits.append(int(limits[-1] * FINER))
    return limits


def _as_many(batches: list[MicroBatch], plans: Sequence[Sequence[object]]) -> list[MicroBatch]:
    """Add empty micro-batches, so that this rank makes as many passes as the busiest."""
    return batches + [empty_micro_batch()] * (max(map(len, plans)) - len(batches))
