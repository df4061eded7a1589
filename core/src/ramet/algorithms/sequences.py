"""Sums and means over sequences or turns of a packed micro-batch, which every token of them gets."""

from __future__ import annotations

import torch
from torch import Tensor


def unit_sums(values: Tensor, mask: Tensor, units: Tensor) -> Tensor:
    """`[T]`: for each token the sum of `values` `[T]` over the masked-in tokens of its unit.

    `units` `[T]` are names. Differentiable; values outside the mask get no gradient.
    """
    _, unit = torch.unique(units, return_inverse=True)
    zeros = values.new_zeros(int(unit.max()) + 1 if len(unit) else 0)
    return zeros.index_add(0, unit, torch.where(mask, values, 0.0))[unit]


def unit_means(values: Tensor, mask: Tensor, units: Tensor) -> Tensor:
    """Return the mean where `unit_sums` has the sum; 0 for a unit without a masked-in token."""
    return unit_sums(values, mask, units) / unit_sums(torch.ones_like(values), mask, units).clamp(min=1)


def turns_of_sequences(sequence_ids: Tensor, turn_ids: Tensor) -> Tensor:
    """`[T]` names of the turns of all sequences; turn -1 is a turn like others."""
    return sequence_ids * (int(turn_ids.max()) + 2 if len(turn_ids) else 1) + turn_ids
