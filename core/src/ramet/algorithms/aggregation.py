"""Aggregation of per-token losses to one number, by counts over the complete optimiser step.

Every mode is a weighted sum of per-token losses whose weights need only global counts. So micro-batches and ranks can
be added up however the batch is cut, and the gradient does not depend on how sequences were packed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ramet.config.schema import LossAggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Denominators of one optimiser step, over all of its rows, micro-batches and ranks."""

    tokens: float  # trained, each counted by its weight
    rollouts: int
    max_tokens: int  # the constant of the `…-sum-norm` modes: the limit on a response, not the longest one seen


def token_weights(
    mode: LossAggregation,
    mask: Tensor,
    rollout_ids: Tensor,
    counts: TokenCounts,
    given: Tensor | None = None,
    elsewhere: Tensor | None = None,
) -> Tensor:
    """`[T]` float32 weights, 0 outside the mask; the loss is `(weights * per_token).sum()` over all micro-batches.

    `given` `[T]`: how much a token counts, in its sequence's length too; None: 1.

    A sequence of the modes' names is a rollout, all of its threads. `elsewhere`, one number for each of `rollout_ids`:
    how much of the rollout is trained in other micro-batches; None: nothing. `seq-mean-token-sum-norm` is the mean over
    sequences of their sums over `max_tokens` (Dr. GRPO, arXiv 2503.20783). `token-sum-norm` divides only by that
    constant, as ARPO's released code does under the longer name: its gradient grows with the number of sequences.
    """
    counted = mask.float() if given is None else torch.where(mask, given, 0.0)
    weights = counted
    if mode is LossAggregation.TOKEN_MEAN:
        return weights / (counts.tokens or 1)
    if mode is LossAggregation.TOKEN_SUM_NORM:
        return weights / counts.max_tokens
    weights = weights / max(counts.rollouts, 1)
    if mode is LossAggregation.SEQ_MEAN_TOKEN_SUM_NORM:
        return weights / counts.max_tokens
    if mode is LossAggregation.SEQ_MEAN_TOKEN_SUM or not len(mask):
        return weights
    # By rollout, of which there are at most as many as tokens; to count them would wait for the device.
    lengths = torch.zeros_like(counted).index_add(0, rollout_ids, counted)
    lengths = lengths if elsewhere is None else lengths + pad(elsewhere, (0, len(mask) - len(elsewhere)))
    return weights / lengths.where(lengths > 0, 1.0)[rollout_ids]


def aggregate(per_token: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum of `[T]`, a scalar. Where the weight is 0, `per_token` adds nothing, even NaN."""
    return torch.where(weights > 0, per_token * weights, 0.0).sum()
