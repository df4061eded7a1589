"""MaxRL: a rollout's advantage is its score relative to its group, in units of the group's mean (arXiv 2602.02710).

    A_i = (s_i - mean) / (mean |s| + eps)

For scores of 0 and 1 mean |s| is the share of right rollouts, and the formula is the paper's, (s_i - mean) / mean. The
sum over a group is then the gradient of log p cut at as many terms as the group has rollouts, p being the probability
of a right answer (theorem 2): a task that is rarely solved counts as much as one that is often solved. The paper
treats no other scores. With scores below 0 the mean of their sizes keeps the sign of A; this extension is Ramet's.
"""

from __future__ import annotations

from typing import Literal

from ramet.algorithms.advantages.config import MaxRlConfig
from ramet.algorithms.advantages.groups import over_tokens, without_spread
from ramet.helpers.group_scores import group_statistics, rollout_scores
from ramet.types import AdvantageInputs, AdvantageOutput, Need


class MaxRl:
    """Advantage estimator `maxrl`. A group without a right rollout has advantages of 0."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True
    scope: Literal["batch", "group"] = "group"

    def __init__(self, config: MaxRlConfig) -> None:
        self.config = config

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scores = rollout_scores(batch)
        group = group_statistics(scores, batch.group_ids)
        size = group_statistics(scores.abs(), batch.group_ids).mean
        advantage = (scores - group.mean) / (size + self.config.eps)
        return AdvantageOutput(advantages=over_tokens(advantage, batch.mask), metrics=without_spread(group))
