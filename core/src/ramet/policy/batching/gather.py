"""Rows of a tensor by index, where several may be the same one: what rollouts share is computed once and read often."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def gathered(states: Tensor, index: Tensor) -> Tensor:
    """`states[index]`; `[n, ...]`, `[m]` int64 -> `[m, ...]`."""
    rows: Tensor = _Gather.apply(states, index)  # type: ignore[no-untyped-call]
    return rows


class _Gather(torch.autograd.Function):
    """Rows of the first dimension; gradients of a row that is taken several times are added up in float32."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.length = len(states)
        return states.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        total = gradient.new_zeros(ctx.length, *gradient.shape[1:], dtype=torch.float32)
        return total.index_add_(0, index, gradient.float()).to(gradient.dtype), None
