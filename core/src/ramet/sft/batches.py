"""The passes of an optimiser step, made of examples: packed as rollouts are, at most a budget of tokens in each.

An optimiser step takes the same sequences whatever the number of ranks is. Every rank is given all of them, computes
the same partition, balanced by cost, and makes as many passes as the busiest rank (`ramet.policy.batching`). The last
step of a pass over the data takes the rest, so every example counts once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler
from transformers import PreTrainedModel

from ramet.config.schema import Config
from ramet.policy.batching.packing import Cost, MicroBatch
from ramet.policy.batching.partition import RankLayout, own_micro_batches
from ramet.policy.batching.rows import Ids
from ramet.policy.models import attention_cost, row_cost
from ramet.sft.encode import Example
from ramet.sft.world import World

LOOKED_AT = 1000  # optimiser steps, from which the plan of memory has the sizes of micro-batches


class Examples(Dataset[Example]):
    """The examples as `transformers.Trainer` wants them."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        return self._examples[index]


class StepSampler(Sampler[list[int]]):
    """The indices of every optimiser step of one pass over the examples, the same on all ranks."""

    def __init__(self, examples: int, *, per_step: int, seed: int) -> None:
        self._examples = examples
        self._per_step = per_step
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this pass, the first one being 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        return -(-self._examples // self._per_step)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        order = torch.randperm(self._examples, generator=generator).tolist()
        for start in range(0, self._examples, self._per_step):
            yield order[start : start + self._per_step]


def fed_by_step(examples: Sequence[Example], config: Config, steps: int) -> list[list[int]]:
    """Return the tokens that are fed of each sequence, all but its last, by optimiser step: of so many passes over the
    examples as have `LOOKED_AT` steps, and at most of `steps`.
    """
    fed = [len(example) - 1 for example in examples]
    sampler = StepSampler(len(fed), per_step=config.sft.sequences_per_step, seed=config.run.seed)
    drawn: list[list[int]] = []
    while len(drawn) < min(steps, LOOKED_AT):
        sampler.set_epoch(len(drawn) // len(sampler))
        drawn += sampler
    return [[fed[i] for i in step] for step in drawn[:steps]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleRow:
    """An example as packing reads it. Its first token, which nothing predicts, is the prompt."""

    prompt_ids: Ids
    response_ids: Ids
    mask: NDArray[np.bool_]
    where: str

    @classmethod
    def of(cls, example: Example) -> ExampleRow:
        ids = np.frombuffer(example.token_ids, np.int32)
        trained = np.frombuffer(example.trained, np.int8).astype(np.bool_)
        return cls(prompt_ids=ids[:1], response_ids=ids[1:], mask=trained[1:], where=example.where)

    @property
    def n_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """One rank's part of an optimiser step."""

    micro_batches: Sequence[MicroBatch]  # as many on every rank; their targets are the trained tokens
    n_trained: int  # trained tokens of all ranks: the loss is divided by it

    @property
    def n_tokens(self) -> int:
        """Number of tokens of this rank's sequences, without padding."""
        return sum(batch.n_tokens for batch in self.micro_batches)

    @property
    def n_positions(self) -> int:
        """Positions that this rank feeds, with padding."""
        return sum(batch.input_ids.numel() for batch in self.micro_batches)


class StepPacker:
    """Packs the examples of an optimiser step. What collates in a `DataLoader`."""

    def __init__(self, *, budget: int, world: World, cost: Cost | None, row_cost: Cost) -> None:
        """`budget`: tokens of a micro-batch; `cost` and `row_cost` as `own_micro_batches` takes them."""
        self._budget = budget
        self._layout = RankLayout(rank=world.rank, world_size=world.size)
        self._cost = cost
        self._row_cost = row_cost

    @classmethod
    def of(cls, model: PreTrainedModel, device: torch.device, *, budget: int, world: World) -> StepPacker:
        """Make a packer for this model's attention."""
        return cls(budget=budget, world=world, cost=attention_cost(model, device), row_cost=row_cost(model, device))

    def __call__(self, examples: Sequence[Example]) -> StepBatch:
        rows = [ExampleRow.of(example) for example in examples]
        batches = own_micro_batches(rows, self._layout, budget=self._budget, cost=self._cost, row_cost=self._row_cost)
        return StepBatch(micro_batches=batches, n_trained=sum(int(row.mask.sum()) for row in rows))
