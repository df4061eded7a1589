"""GRPO: a rollout's advantage is its score relative to its group (DeepSeekMath, arXiv 2402.03300, §4.1.2).

    A_i = (s_i - mean) / (std + eps)        std with n - 1; Dr. GRPO (arXiv 2503.20783) leaves the division out

Forks are ordinary members of their group (the ARPO paper's "soft" attribution).
"""

from __future__ import annotations

from typing import Literal

from ramet.algorithms.advantages.config import GrpoConfig
from ramet.algorithms.advantages.groups import over_tokens, without_spread
from ramet.helpers.group_scores import group_statistics, rollout_scores
from ramet.types import AdvantageInputs, AdvantageOutput, Need


class Grpo:
    """Advantage estimator `grpo`."""

    needs: frozenset[Need] = frozenset()
    reads_threads = True
    scope: Literal["batch", "group"] = "group"

    def __init__(self, config: GrpoConfig) -> None:
        self.config = config

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        scores = rollout_scores(batch)
        statistics = group_statistics(scores, batch.group_ids)
        advantage = statistics.relative(scores, normalize_std=self.config.normalize_std, eps=self.config.eps)
        return AdvantageOutput(advantages=over_tokens(advantage, batch.mask), metrics=without_spread(statistics))
