"""Seconds of the passes over a step's rollouts: log-probabilities, and updates with their exchange between ranks.

    forward pass = 2 W a token and 4 Q L a pair of positions, in FLOP
    backward pass = twice that; with LoRA once, since frozen weights have no gradients
    checkpointing = one forward pass more, of every block or every k-th

W are the weights of all linear layers and the head, L blocks, Q = heads * head_dim. Mini-batches are cut and packed by
the planner's own code (`policy/batching`). All ranks make each pass together, so it takes what the busiest one needs.
The ranks that share a copy of the weights gather them in every forward and backward pass, in `model.dtype`, and add up
their gradients in float32; that counts where it takes longer than the computation. U ranks that share sequences
(`policy.sequence_parallel`) exchange positions for heads around every attention, which waits for it:

    T (2 Q + 2 K) c (1 - 1/U) bytes of a rank in each block's forward pass, and as many in its backward pass

T are a rank's tokens, c the bytes of `model.dtype`, K = key heads * head_dim, with key heads repeated where U does not
divide their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import torch

from ramet.config.schema import MinibatchOf, Offload, SharePrefixes
from ramet.models.attention import KNOWS_BORDERS
from ramet.planning.drawn import Drawn
from ramet.planning.gpus import BANDWIDTH, COMPUTE, EXCHANGE, Gpu
from ramet.planning.memory_policy import MASTER, TrainedModel
from ramet.planning.model_shape import ModelShape, count
from ramet.policy.batching.packing import PackedLayout, model_cost
from ramet.policy.batching.partition import plans_of_groups, plans_of_parts
from ramet.policy.batching.shared import WORTHWHILE

NETWORK = 50e9  # bytes/s of one GPU to other nodes: an assumption, 400 Gbit/s each
HOST = 53e9  # bytes/s between a GPU and pinned memory (measured on an H200; docs/hardware.md)
HOST_ADAMW = 10e9  # bytes/s of AdamW on the host, of a rank: an assumption
ADAMW = 7 * MASTER  # bytes read and written for each trained weight: itself, its gradient, two moments
MOST = 4  # mini-batches that are planned; the others count as their mean


@dataclass(frozen=True, slots=True)
class Work:
    """The work of one pass on one rank, or of several."""

    tokens: float
    pairs: float  # of a token and one that it attends to

    def flops(self, shape: ModelShape) -> float:
        """FLOP of a forward pass."""
        return 2 * linear_weights(shape) * self.tokens + 4 * shape.queries * shape.layers * self.pairs


Passes = list[list[Work]]  # [parts][passes], a part for each group of ranks that share sequences


def linear_weights(shape: ModelShape) -> int:
    """Weights of the linear layers of all blocks, and of the output head."""
    return shape.layers * count(shape.linear) + shape.vocab * shape.hidden


def separate(drawn: Drawn, rows: Iterable[int]) -> Work:
    """The work of these rollouts, each by itself."""
    lengths = [int(drawn.prompt + drawn.lengths[row]) - 1 for row in rows]
    return Work(sum(lengths), sum(length * (length + 1) / 2 for length in lengths))


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateTime:
    """Seconds of the passes of one model over a step's rollouts on one kind of GPU."""

    model: TrainedModel
    drawn: Drawn
    gpu: Gpu
    per_node: int  # ranks of a node

    @property
    def shares_prefixes(self) -> bool:
        """Whether prefixes are computed once, also by `auto`, which looks at the rollouts."""
        if not self.model.shares_prefixes:
            return False
        if self.model.config.policy.share_prefixes is SharePrefixes.ALWAYS:
            return True
        return self.saved() > 1 / WORTHWHILE

    def forward(self) -> float:
        """Seconds of log-probabilities or values of all rollouts."""
        passes = self.passes(range(len(self.drawn.lengths)))
        return self._seconds(passes, factor=1, exchanged=self.gathered(), swaps=1)

    def update(self, *, exchanges: bool = True) -> float:
        """Seconds of all optimiser steps of one training step; without `exchanges` as if ranks' were free."""
        model, train = self.model, self.model.config.train
        lora = bool(model.config.policy.lora_rank)
        every = model.config.policy.checkpoint_every
        again = 1 / every if every else 0.0
        factor, swaps = (2 if lora else 3) + again, 2 + again if exchanges else 0.0
        exchanged = 2 * self.gathered() + self._summed() if exchanges else 0.0
        drawn = [self.passes(rows) for rows in self.minibatches()]
        measured = [self._seconds(passes, factor=factor, exchanged=exchanged, swaps=swaps) for passes in drawn]
        seconds = sum(measured) / len(drawn)
        moved = 4 * MASTER * self._trained / HOST if model.config.policy.offload is Offload.OPTIMIZER else 0.0
        return train.epochs * train.minibatches * (seconds + self._optimiser_step()) + moved

    def minibatches(self) -> list[Sequence[int]]:
        """The rollouts of the first optimiser steps, complete groups where the run draws those."""
        train, size, total = self.model.config.train, self.drawn.group_size, len(self.drawn.lengths)
        by_group = train.minibatch_of is MinibatchOf.GROUPS or (
            train.minibatch_of is MinibatchOf.AUTO and self.shares_prefixes
        )
        n, planned = train.minibatches, min(MOST, train.minibatches)
        if by_group and train.tasks_per_step >= n:
            cuts = [train.tasks_per_step * i // n * size for i in range(planned + 1)]
            return [range(a, b) for a, b in pairwise(cuts)]
        return [range(i, total, n) for i in range(planned)]

    def passes(self, rows: Sequence[int]) -> Passes:
        """The passes of each part over these rollouts, as ranks would make them."""
        policy = self.model.config.policy
        parts = self.model.ranks // policy.sequence_parallel
        budget = policy.max_microbatch_tokens * policy.sequence_parallel
        cost = model_cost(self.model.shape.hidden, torch.device("cuda"))
        if self.shares_prefixes:
            shared = plans_of_groups(self.drawn.tries(rows), parts, budget=budget, cost=cost)
            return [
                [Work(sum(t.n_tokens for t in trees), sum(t.n_pairs for t in trees)) for trees in part]
                for part in shared
            ]
        knows = self.model.attention in KNOWS_BORDERS
        lengths = [int(self.drawn.prompt + self.drawn.lengths[row]) - 1 for row in rows]
        plans = plans_of_parts(lengths, parts, budget=budget, cost=None if knows else cost, row_cost=cost)
        return [[_packed([lengths[i] for i in own], layout, knows) for own, layout in part] for part in plans]

    def saved(self) -> float:
        """Tokens of all rollouts, for each that is computed where prefixes are computed once."""
        rows = range(len(self.drawn.lengths))
        return separate(self.drawn, rows).tokens / sum(trie.n_tokens for trie in self.drawn.tries(rows))

    def waited_share(self) -> float:
        """Share of an update's time in which ranks wait for the busiest."""
        columns = [column for rows in self.minibatches() for column in _columns(self.passes(rows))]
        flops = [[work.flops(self.model.shape) for work in column] for column in columns]
        return 1 - sum(sum(column) / len(column) for column in flops) / sum(map(max, flops))

    def _seconds(self, passes: Passes, *, factor: float, exchanged: float, swaps: float) -> float:
        """Seconds of some passes, each of `factor` forward passes' FLOP, during which so many seconds are exchanged.
        Positions are exchanged for heads `swaps` times.
        """
        rate, seconds = self.gpu.flops * COMPUTE * self.model.config.policy.sequence_parallel / factor, 0.0
        for column in _columns(passes):
            computed = max(work.flops(self.model.shape) for work in column) / rate
            seconds += max(computed, exchanged) + swaps * self.swapped(max(work.tokens for work in column))
        return seconds

    def swapped(self, tokens: float) -> float:
        """Seconds in which the ranks that share so many tokens exchange positions for heads in one forward pass."""
        shape, shared = self.model.shape, self.model.config.policy.sequence_parallel
        keys = shape.keys * (shared // gcd(shape.kv_heads, shared))
        sent = tokens / shared * 2 * (shape.queries + keys) * self.model.computed * (1 - 1 / shared)
        return shape.layers * sent / self.link(shared)

    def gathered(self) -> float:
        """Seconds to gather all weights once; offloaded ones come from the host before."""
        model, parameters = self.model, self.model.shape.n_parameters
        offloaded = MASTER * parameters / model.shards / HOST if model.config.policy.offload is Offload.ALL else 0.0
        return model.computed * parameters * (1 - 1 / model.shards) / self.link(model.shards) + offloaded

    def _summed(self) -> float:
        """Seconds to add up the gradients over the ranks that share a copy."""
        shards = self.model.shards
        return MASTER * self._trained * (shards - 1) / self.link(shards)

    def _optimiser_step(self) -> float:
        """Seconds of AdamW, and to add up gradients over replicas."""
        replicas, trained = self.model.config.policy.replicas, self._trained
        on_host = self.model.config.policy.offload is Offload.ALL
        between = 2 * MASTER * trained * (1 - 1 / replicas) / self.link(self.model.ranks)
        return ADAMW * trained / (HOST_ADAMW if on_host else self.gpu.bandwidth * BANDWIDTH) + between

    @property
    def _trained(self) -> float:
        """Trained weights of a rank."""
        return count(self.model.trained) / self.model.shards

    def link(self, ranks: int) -> float:
        """Bytes/s between so many neighbouring ranks."""
        return EXCHANGE * (self.gpu.link if ranks <= self.per_node else NETWORK)


def _packed(lengths: Sequence[int], layout: PackedLayout, knows_borders: bool) -> Work:
    """Padding is computed, and where the attention does not know borders, so is all that its mask hides."""
    if layout is PackedLayout.PADDED:
        return Work(len(lengths) * max(lengths), len(lengths) * max(lengths) ** 2 / 2)
    pairs = sum(length**2 / 2 for length in lengths) if knows_borders else sum(lengths) ** 2
    return Work(sum(lengths), pairs)


def _columns(passes: Passes) -> list[list[Work]]:
    """The work of every part in each pass; of a part without that many passes none."""
    most, none = max(map(len, passes)), Work(0.0, 0.0)
    return [[part[i] if i < len(part) else none for part in passes] for i in range(most)]
