"""Log-probabilities and entropies on their way from the ranks that found them to the order of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ramet.policy.batching.batch import Floats, Row
from ramet.policy.batching.packing import MicroBatch
from ramet.policy.forward import TokenScores


@dataclass(slots=True, kw_only=True)
class LogprobResult:
    """One array per row in `rows`, over its response."""

    rows: list[int] = field(default_factory=list)
    logprobs: list[Floats] = field(default_factory=list)
    entropies: list[Floats] = field(default_factory=list)  # empty if nobody asked for them

    def add(self, scores: TokenScores, batch: MicroBatch) -> None:
        self.rows.extend(batch.rows)
        self.logprobs.extend(_pieces(scores.logprobs, batch))
        if scores.entropies is not None:
            self.entropies.extend(_pieces(scores.entropies, batch))


def in_order(rows: Sequence[Row], parts: Sequence[LogprobResult]) -> LogprobResult:
    """All parts as one, in the order of `rows`. Ranks that share sequences bring the same, and one of them is taken."""
    out = LogprobResult(rows=list(range(len(rows))), logprobs=[_zeros(row) for row in rows])
    out.entropies = [_zeros(row) for row in rows]
    for part in parts:
        for i, index in enumerate(part.rows):
            out.logprobs[index] = part.logprobs[i]
            if part.entropies:
                out.entropies[index] = part.entropies[i]
    return out


def _pieces(values: Tensor, batch: MicroBatch) -> list[Floats]:
    return [piece.numpy().copy() for piece in torch.split(values.cpu(), list(batch.lengths))]


def _zeros(row: Row) -> Floats:
    return np.zeros(len(row.response_ids), np.float32)
