"""Whitening: mean 0 and variance 1 over all sampled tokens of a step.

(x - mean) / sqrt(variance + 1e-8)        variance with n - 1
"""

from __future__ import annotations

import torch
from torch import Tensor

CACHED = 2**16  # numbers computed at once: with many more, allocating intermediate results takes as long as computing
VARIANCE_EPS = 1e-8


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """`values` `[N, T]` as float32 with mean 0 and variance 1 over the mask, 0 outside it."""
    masked = values.double()[mask]
    out = values.float().clone()
    whiten_in_place(out, mask, torch.tensor(float(len(masked))), masked.sum(), torch.linalg.vector_norm(masked) ** 2)
    return out


def whiten_in_place(values: Tensor, mask: Tensor, count: Tensor, total: Tensor, squares: Tensor) -> None:
    """Do what `whiten` does, in `values` itself. `count`, `total` and `squares` are float64 sums over the mask."""
    mean = total / count.clamp(min=1)
    variance = (squares - count * mean**2).clamp(min=0) / (count - 1).clamp(min=1)
    scale = (variance + VARIANCE_EPS).rsqrt()
    for rows in row_blocks(mask):
        values[rows].sub_(mean).mul_(scale).mul_(mask[rows].float())


def row_blocks(mask: Tensor) -> list[slice]:
    """Rows that are computed at once, about `CACHED` numbers each."""
    rows = max(1, CACHED // max(1, mask.shape[1]))
    return [slice(start, start + rows) for start in range(0, len(mask), rows)]
