"""Trees of a group, identified only by `node_ids`: rollouts that share their first token are of one tree.

So forks of a rollout that is masked, and is not a row, are still of one tree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ramet.types import AdvantageInputs


def tree_ids(batch: AdvantageInputs) -> Tensor:
    """`[N]` int64 names of the trees. A rollout without a token is a separate tree."""
    n = len(batch.rewards)
    alone = -2 - torch.arange(n, device=batch.node_ids.device)
    if not batch.node_ids.shape[1]:
        return alone
    first = batch.node_ids[:, 0]
    return torch.where(first >= 0, first, alone)


def sharers(batch: AdvantageInputs, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return for every token how many rollouts share it, and their sum of `values` `[N]`.

    Both are `[N, T]` float64, 0 on padding.
    """
    inside = batch.node_ids >= 0
    names, node = torch.unique(batch.node_ids, return_inverse=True)
    zeros = torch.zeros(len(names), dtype=torch.float64, device=node.device)
    counted = inside.double()
    summed = counted * values.double()[:, None]
    count = zeros.index_add(0, node.flatten(), counted.flatten())[node]
    total = zeros.index_add(0, node.flatten(), summed.flatten())[node]
    return count * inside, total * inside
