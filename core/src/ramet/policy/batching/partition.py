"""Who computes what: every rank is given all rows, and all ranks find the same division of them without a word.

Rows are shared out by what they cost, tokens and pairs of positions in attention, longest first to the rank that has
least (Graham's rule: at most 4/3 of the best division's longest share). All ranks then make the same number of passes,
since each pass is a collective under FSDP; who has fewer micro-batches passes empty ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

from ramet.config.schema import TrainConfig
from ramet.policy.batching.batch import Row
from ramet.policy.batching.packing import Cost, MicroBatch, empty_micro_batch, micro_batch, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """Where a rank stands: `share` of `shares` data-parallel ones. Neighbours share sequences (`sequence_parallel`)."""

    rank: int
    world_size: int
    sequence_parallel: int = 1

    @property
    def share(self) -> int:
        return self.rank // self.sequence_parallel

    @property
    def shares(self) -> int:
        return self.world_size // self.sequence_parallel

    @property
    def counts(self) -> bool:
        """Whether this rank speaks for its share: of the ranks with the same rows, the first."""
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


def divide(costs: Sequence[float], shares: int) -> list[list[int]]:
    """Indices of each share, ascending. Deterministic; equal costs go by index."""
    out: list[list[int]] = [[] for _ in range(shares)]
    loads = [0.0] * shares
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        least = loads.index(min(loads))
        out[least].append(index)
        loads[least] += costs[index]
    return [sorted(share) for share in out]


def own_micro_batches(
    rows: Sequence[Row], place: RankLayout, *, budget: int, cost: Cost | None, row_cost: Cost
) -> list[MicroBatch]:
    """This rank's micro-batches; their `rows` are indices into `rows`. As many on every rank.

    `cost` chooses layouts (see `micro_batches`), `row_cost` says what one sequence costs.
    """
    lengths = [row.n_tokens - 1 for row in rows]
    shares = divide([row_cost.packed([length]) for length in lengths], place.shares)
    plans = [plan([lengths[i] for i in share], budget=budget, cost=cost) for share in shares]
    own = shares[place.share]
    batches = [micro_batch([rows[i] for i in own], chosen, layout) for chosen, layout in plans[place.share]]
    batches = [replace(batch, rows=tuple(own[i] for i in batch.rows)) for batch in batches]
    return batches + [empty_micro_batch()] * (max(map(len, plans)) - len(batches))
