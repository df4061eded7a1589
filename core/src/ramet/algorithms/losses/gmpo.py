"""GMPO: the geometric mean of a sequence's clipped ratios (Zhao et al., arXiv 2507.20673).

    s_i = exp(mean_t sgn(A_t) min(sgn(A_t) log r_t, sgn(A_t) clip(log r_t, -low, high)))        L_t = -A_t s_i

Each token is clipped separately, in the logarithm: a sequence is never clipped as one, and one extreme token cannot
dominate it.
"""

from __future__ import annotations

import torch

from ramet.algorithms.losses.config import GmpoConfig
from ramet.algorithms.ratio import LIMIT
from ramet.algorithms.sequences import unit_means
from ramet.types import LossInputs, LossOutput, Need


class Gmpo:
    """Policy loss `gmpo`."""

    needs: frozenset[Need] = frozenset()
    reads_ratio = True
    zero_without_advantage = True
    # The ratio is a sequence's, and so is its weight.
    aggregation = frozenset({"seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"})

    def __init__(self, config: GmpoConfig) -> None:
        self.config = config

    def __call__(self, batch: LossInputs) -> LossOutput:
        config, sign = self.config, torch.sign(batch.advantages)
        difference = batch.logprobs - batch.old_logprobs
        clipped = difference.clamp(-config.clip_low, config.clip_high)
        pessimistic = sign * torch.minimum(sign * difference, sign * clipped)
        ratio = unit_means(pessimistic, batch.mask, batch.sequence_ids).clamp(-LIMIT, LIMIT).exp()
        metrics = {
            "clip_fraction": (sign * clipped < sign * difference).float(),
            "approx_kl": -difference.detach(),
            "sequence_ratio": ratio.detach(),
        }
        return LossOutput(per_token=-batch.advantages * ratio, metrics=metrics)
