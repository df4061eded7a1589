"""TreeRL: a token's advantage is what its node of the tree is worth (Hou et al., arXiv 2506.11902).

    V(n) = mean of s' over the leaves below n        s'_i = s_i - mean_{j != i} s_j, over the group
    A    = [(V(n) - V(root)) + (V(n) - V(parent))] / sqrt(number of leaves below n)

A node is a stretch of tokens that the same rollouts share; the root is the prompt, whose value is 0 by the
leave-one-out scores. A rollout without forks is one node below the root: A = 2 s'. Nodes are identified by `node_ids`,
so any branch policy may have grown the tree.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ramet.algorithms.advantages.groups import without_spread
from ramet.algorithms.advantages.trees import sharers
from ramet.helpers.group_scores import group_statistics, rollout_scores
from ramet.types import AdvantageInputs, AdvantageOutput, Need


class TreeRl:
    """Advantage estimator `treerl`."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True
    scope: Literal["batch", "group"] = "group"

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scores = rollout_scores(batch)
        group = group_statistics(scores, batch.group_ids)
        leaves = (scores - group.mean) * torch.where(group.size > 1, group.size / (group.size - 1).clamp(min=1), 1.0)
        count, total = sharers(batch, leaves)
        value = total / count.clamp(min=1)
        advantages = (2 * value - _parent_values(value, count)) / count.clamp(min=1).sqrt()
        return AdvantageOutput(advantages=advantages.float() * batch.mask, metrics=without_spread(group))


def _parent_values(value: Tensor, count: Tensor) -> Tensor:
    """`[N, T]`: the value of the node before the token's own on its path, 0 for the root's.

    Along a path fewer and fewer rollouts share a token, so a node begins where their number changes.
    """
    if not value.shape[1]:
        return value
    position = torch.arange(value.shape[1], device=value.device)
    begins = torch.zeros_like(count, dtype=torch.bool)
    begins[:, 1:] = count[:, 1:] != count[:, :-1]
    first = torch.where(begins, position, 0).cummax(1).values  # of the token's node
    return torch.where(first > 0, value.gather(1, (first - 1).clamp(min=0)), 0.0)
