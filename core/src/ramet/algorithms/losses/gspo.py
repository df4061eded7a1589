"""GSPO: one ratio for a sequence (Zheng et al., arXiv 2507.18071), or for a turn.

    s_i = exp(mean over the sequence's tokens of log pi - log pi_old)
    L_t = max(-A_t s, -A_t clip(s, 1 - low, 1 + high))        s = sg[s_i] pi_t / sg[pi_t]

s is the form by token: its value is s_i, its gradient only the token's, so that tokens may have different advantages.
If they have the same, the gradient equals the sequence form's. `unit=turn` has one ratio for each turn, as AT2PO (arXiv
2601.04767) does.
"""

from __future__ import annotations

import torch

from ramet.algorithms.losses.config import GspoConfig, RatioUnit
from ramet.algorithms.ratio import LIMIT
from ramet.algorithms.sequences import turns_of_sequences, unit_means
from ramet.types import LossInputs, LossOutput, Need


class Gspo:
    """Policy loss `gspo`."""

    needs: frozenset[Need] = frozenset()
    reads_ratio = True
    zero_without_advantage = True
    # The ratio is a sequence's, and so is its weight.
    aggregation = frozenset({"seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"})

    def __init__(self, config: GspoConfig) -> None:
        self.config = config

    def __call__(self, batch: LossInputs) -> LossOutput:
        config, advantages, units = self.config, batch.advantages, batch.sequence_ids
        if config.unit is RatioUnit.TURN:
            units = turns_of_sequences(batch.sequence_ids, batch.turn_ids)
        difference = batch.logprobs.detach() - batch.old_logprobs
        mean = unit_means(difference, batch.mask, units)
        ratio = (mean.clamp(-LIMIT, LIMIT) + batch.logprobs - batch.logprobs.detach()).exp()
        free = -advantages * ratio
        clipped = -advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        metrics = {
            "clip_fraction": (clipped > free).float(),
            "approx_kl": -difference,
            "sequence_ratio": ratio.detach(),
        }
        return LossOutput(per_token=torch.maximum(free, clipped), metrics=metrics)
