"""From examples to batches: right-padded to a multiple of 8, labels -100 wherever nothing is to be learned.

Several ranks need equally many batches. What is missing at the end of a pass are examples in which nothing is to be
learned, not copies: every example counts once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from ramet.sft.encode import Example

IGNORED = -100  # label that the loss of transformers leaves out
MULTIPLE = 8
EMPTY = Example(token_ids=array("i", [0]), trained=array("b", [0]))


class Examples(Dataset[Example]):
    """The examples as `transformers.Trainer` wants them. The index after the last one gives `EMPTY`."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        return self._examples[index] if index < len(self._examples) else EMPTY


class EvenShuffle(Sampler[int]):
    """The indices of all examples in the order of one rank's Trainer, then as many of `EMPTY` as fill a multiple."""

    def __init__(self, examples: int, *, multiple: int, seed: int) -> None:
        self._examples = examples
        self._missing = -examples % multiple
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of this pass, the first one being 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._examples + self._missing

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self._seed + self._epoch)  # as accelerate's SeedableRandomSampler
        yield from torch.randperm(self._examples, generator=generator).tolist()
        yield from [self._examples] * self._missing


class Collator:
    """Pads one batch on the right: positions are those of a rollout, and a causal model needs no attention mask.

    No token attends to later ones, so padding reaches no label. Without a mask attention runs its causal
    kernel, which is faster.
    """

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`input_ids` and `labels`, both int64 [examples, width]."""
        width = -(-max(map(len, examples)) // MULTIPLE) * MULTIPLE
        input_ids = torch.full((len(examples), width), self._pad_id, dtype=torch.int64)
        labels = torch.full_like(input_ids, IGNORED)
        for row, example in enumerate(examples):
            ids = torch.frombuffer(example.token_ids, dtype=torch.int32).long()
            trained = torch.frombuffer(example.trained, dtype=torch.int8).bool()
            input_ids[row, : len(ids)] = ids
            labels[row, : len(ids)] = ids.masked_fill(~trained, IGNORED)
        return {"input_ids": input_ids, "labels": labels}
