"""Sums and means over sequences or turns of a packed micro-batch, which every token of them gets."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def unit_sums(values: Tensor, mask: Tensor, units: Tensor) -> Tensor:
    """`[T]`: for each token the sum of `values` `[T]` over the masked-in tokens of its unit.

    `units` `[T]` are names. Differentiable; values outside the mask get no gradient.
    """
    return _sums(values, mask, _numbered(units))


def unit_means(values: Tensor, mask: Tensor, units: Tensor) -> Tensor:
    """Return the mean where `unit_sums` has the sum; 0 for a unit without a masked-in token."""
    numbers = _numbered(units)
    return _sums(values, mask, numbers) / _sums(torch.ones_like(values), mask, numbers).clamp(min=1)


def turns_of_sequences(sequence_ids: Tensor, turn_ids: Tensor) -> Tensor:
    """`[T]` names of the turns of all sequences; turn -1 is a turn like others."""
    return sequence_ids * (turn_ids.max() + 2 if len(turn_ids) else 1) + turn_ids


def _sums(values: Tensor, mask: Tensor, numbers: Tensor) -> Tensor:
    """Sum as `unit_sums` does, of units that are numbered; there are at most as many as tokens."""
    return torch.zeros_like(values).index_add(0, numbers, torch.where(mask, values, 0.0))[numbers]


def _numbered(units: Tensor) -> Tensor:
    """Return numbers from 0 for the names `[T]`, as `torch.unique` does, which would wait for the device to know how
    many there are.
    """
    ordered, order = units.sort()
    numbers = pad((ordered[1:] != ordered[:-1]).cumsum(0), (len(units[:1]), 0))
    return torch.zeros_like(numbers).scatter(0, order, numbers)
