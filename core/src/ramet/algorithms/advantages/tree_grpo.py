"""Tree-GRPO: a rollout compared with its tree and with all trees of its task (Ji et al., arXiv 2509.21240).

    A_i = A^intra_i + A^inter_i        each (s_i - mean) / (std + eps), over the leaves of its tree and of all trees

The trees are grown by the branch policy of the same name, or by any other. A tree of one rollout has A^intra = 0; where
the group is a single tree both parts are equal.
"""

from __future__ import annotations

from typing import Literal

import torch

from ramet.algorithms.advantages.config import TreeGrpoConfig
from ramet.algorithms.advantages.groups import over_tokens, without_spread
from ramet.algorithms.advantages.trees import tree_ids
from ramet.helpers.group_scores import group_statistics, rollout_scores
from ramet.types import AdvantageInputs, AdvantageOutput, Need


class TreeGrpo:
    """Advantage estimator `tree_grpo`."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True
    scope: Literal["batch", "group"] = "group"

    def __init__(self, config: TreeGrpoConfig) -> None:
        self.config = config

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scores, eps = rollout_scores(batch), self.config.eps
        trees, groups = group_statistics(scores, tree_ids(batch)), group_statistics(scores, batch.group_ids)
        grown = trees.size > 1
        advantage = torch.zeros_like(scores)
        if self.config.intra:
            advantage += torch.where(grown, (scores - trees.mean) / (trees.std + eps), 0.0)
        if self.config.inter:
            advantage += (scores - groups.mean) / (groups.std + eps)
        share = float(grown.double().mean()) if len(grown) else 0.0
        metrics = {**without_spread(groups), "advantage/rows_in_trees": share}
        return AdvantageOutput(advantages=over_tokens(advantage, batch.mask), metrics=metrics)
