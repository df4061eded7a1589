"""From examples to batches: right-padded to a multiple of 8, labels -100 wherever nothing is to be learned."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ramet.sft.encode import Example

IGNORED = -100  # label that the loss of transformers leaves out
MULTIPLE = 8


class Examples(Dataset[Example]):
    """The examples as `transformers.Trainer` wants them."""

    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        return self._examples[index]


class Collator:
    """Pads one batch on the right: positions are those of a rollout, and a causal model needs no attention mask.

    No token attends to what stands behind it, so padding reaches no label. Without a mask attention runs its causal
    kernel, which is faster.
    """

    def __init__(self, pad_id: int) -> None:
        self._pad_id = pad_id

    def __call__(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        width = -(-max(map(len, examples)) // MULTIPLE) * MULTIPLE
        input_ids = torch.full((len(examples), width), self._pad_id, dtype=torch.int64)
        labels = torch.full_like(input_ids, IGNORED)
        for row, example in enumerate(examples):
            ids = torch.frombuffer(example.token_ids, dtype=torch.int32).long()
            trained = torch.frombuffer(example.trained, dtype=torch.int8).bool()
            input_ids[row, : len(ids)] = ids
            labels[row, : len(ids)] = ids.masked_fill(~trained, IGNORED)
        return {"input_ids": input_ids, "labels": labels}
