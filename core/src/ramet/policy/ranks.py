"""Sums over the ranks of a policy. Everything that is counted passes through here."""

from __future__ import annotations

import torch
import torch.distributed as dist


def sum_over_ranks(value: float) -> float:
    """The sum of every rank's value; the value itself where there is one rank."""
    if not (dist.is_available() and dist.is_initialized()):
        return value
    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)
