"""What one training step is given: its rows and what belongs to their tokens, cut into micro-batches on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramet.policy.batching.rows import Floats, Row, unpadded


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInputs:
    """What a loss needs besides the forward pass: each field is `[T]` on the response axis of one micro-batch."""

    advantages: Tensor
    old_logprobs: Tensor | None  # pi_old; None: the policy itself, before its only optimiser step
    engine_logprobs: Tensor  # mu
    sequence_ids: Tensor  # 0 to the number of sequences - 1
    group_ids: Tensor
    turn_ids: Tensor
    policy_versions: Tensor  # -1 on inserted tokens
    ref_logprobs: Tensor | None
    returns: Tensor | None
    weights: Tensor | None  # how much a token counts; None: 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """One step's N rows. Every other field holds N float32 arrays, each `[T]` over the response of its row.

    It pickles: the driver gives the same batch to every rank. What is None is not needed, or the worker computes it.
    """

    rows: Sequence[Row]
    advantages: Sequence[Floats]
    old_logprobs: Sequence[Floats] | None = None  # pi_old; None: computed as train.old_logprobs asks
    ref_logprobs: Sequence[Floats] | None = None  # None: of the worker's reference, if it has one
    returns: Sequence[Floats] | None = None  # what the critic is trained towards
    values: Sequence[Floats] | None = None  # the critic's before this step's update
    weights: Sequence[Floats] | None = None  # how much a token counts in the policy's loss; None: 1
    kl_coef: float | None = None  # of the KL in the loss in this step; None: train.kl_coef

    @classmethod
    def from_padded(
        cls,
        rows: Sequence[Row],
        advantages: Tensor,
        *,
        returns: Tensor | None = None,
        weights: Tensor | None = None,
        old_logprobs: Sequence[Floats] | None = None,
        ref_logprobs: Sequence[Floats] | None = None,
        values: Sequence[Floats] | None = None,
        kl_coef: float | None = None,
    ) -> TrainBatch:
        """From what an estimator gives, `[N, T]` padded to the longest response."""
        return cls(
            rows=rows,
            advantages=unpadded(rows, advantages),
            old_logprobs=old_logprobs,
            ref_logprobs=ref_logprobs,
            returns=None if returns is None else unpadded(rows, returns),
            weights=None if weights is None else unpadded(rows, weights),
            values=values,
            kl_coef=kl_coef,
        )

    def has_signal(self, row: int) -> bool:
        """Whether any of its trained tokens has an advantage."""
        return bool(self.advantages[row][self.rows[row].mask].any())

    def n_trained(self, row: int) -> float:
        """Its trained tokens, each counted by its weight."""
        trained = self.rows[row]
        return trained.n_trained if self.weights is None else float(self.weights[row][trained.mask].sum(dtype=float))

    def inputs(self, chosen: Sequence[int], device: torch.device) -> TokenInputs:
        """These rows' responses one after another: T is the sum of their lengths."""
        rows = [self.rows[i] for i in chosen]

        def joined(arrays: Sequence[NDArray[Any]]) -> Tensor:
            return torch.from_numpy(np.concatenate(arrays)).to(device)

        def picked(arrays: Sequence[Floats] | None) -> Tensor | None:
            return None if arrays is None else joined([arrays[i] for i in chosen])

        lengths = [len(row.response_ids) for row in rows]
        return TokenInputs(
            advantages=joined([self.advantages[i] for i in chosen]),
            old_logprobs=picked(self.old_logprobs),
            engine_logprobs=joined([row.engine_logprobs for row in rows]),
            sequence_ids=joined([np.repeat(np.arange(len(rows)), lengths)]),
            group_ids=joined([np.repeat([row.group for row in rows], lengths)]),
            turn_ids=joined([row.turn_ids for row in rows]).long(),
            policy_versions=joined([row.policy_versions for row in rows]).long(),
            ref_logprobs=picked(self.ref_logprobs),
            returns=picked(self.returns),
            weights=picked(self.weights),
        )
