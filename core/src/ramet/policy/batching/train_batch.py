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
from ramet.types import LossInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """One step's N rows. Every other field holds N float32 arrays, each `[T]` over the response of its row.

    It pickles: the driver gives the same batch to every rank. What is None is not needed.
    """

    rows: Sequence[Row]
    advantages: Sequence[Floats]
    old_logprobs: Sequence[Floats] | None = None  # pi_old; None: as train.old_logprobs asks, the update computes it or
    # takes the policy itself, before its only optimiser step
    ref_logprobs: Sequence[Floats] | None = None
    returns: Sequence[Floats] | None = None  # what the critic is trained towards
    values: Sequence[Floats] | None = None  # the critic's before this step's update
    weights: Sequence[Floats] | None = None  # how much a token counts in the policy's loss; None: 1
    kl_coef: float = 0.0  # of the KL in the loss in this step

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
        kl_coef: float = 0.0,
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

    def inputs(self, chosen: Sequence[int], logprobs: Tensor, entropies: Tensor | None) -> LossInputs:
        """Return these rows' responses one after another: T is the sum of their lengths.

        `logprobs` and `entropies` `[T]` are pi's, on the device where all are wanted.
        """
        rows, device = [self.rows[i] for i in chosen], logprobs.device
        lengths = [len(row.response_ids) for row in rows]
        old = self._joined(self.old_logprobs, chosen, device)
        return LossInputs(
            logprobs=logprobs,
            old_logprobs=logprobs.detach() if old is None else old,
            engine_logprobs=joined([row.engine_logprobs for row in rows], device),
            advantages=joined([self.advantages[i] for i in chosen], device),
            mask=joined([row.mask for row in rows], device),
            sequence_ids=joined([np.repeat(np.arange(len(rows)), lengths)], device),
            group_ids=joined([np.repeat([row.group for row in rows], lengths)], device),
            turn_ids=joined([row.turn_ids for row in rows], device).long(),
            policy_versions=joined([row.policy_versions for row in rows], device).long(),
            entropies=entropies,
            ref_logprobs=self._joined(self.ref_logprobs, chosen, device),
            returns=self._joined(self.returns, chosen, device),
        )

    def token_weights(self, chosen: Sequence[int], device: torch.device) -> Tensor | None:
        """Return how much each token of `inputs` counts; None: 1."""
        return self._joined(self.weights, chosen, device)

    @staticmethod
    def _joined(arrays: Sequence[Floats] | None, chosen: Sequence[int], device: torch.device) -> Tensor | None:
        return None if arrays is None else joined([arrays[i] for i in chosen], device)


def joined(arrays: Sequence[NDArray[Any]], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays)).to(device)
