"""CISPO: the ratio is clipped as a weight, so no token loses its gradient (MiniMax-M1, arXiv 2506.13585).

L_t = -sg[clip(r_t, 1 - low, 1 + high)] A_t log pi_t
"""

from __future__ import annotations

from ramet.algorithms.losses.config import CispoConfig
from ramet.algorithms.ratio import ratio_of
from ramet.types import LossInputs, LossOutput, Need


class Cispo:
    """Policy loss `cispo`."""

    needs: frozenset[Need] = frozenset()
    reads_ratio = True
    zero_without_advantage = True

    def __init__(self, config: CispoConfig) -> None:
        self.config = config

    def __call__(self, batch: LossInputs) -> LossOutput:
        ratio = ratio_of(batch.logprobs.detach(), batch.old_logprobs)
        weight = ratio.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        metrics = {
            "clip_fraction": (weight != ratio).float(),
            "approx_kl": (batch.old_logprobs - batch.logprobs).detach(),
            "ratio": ratio,
        }
        return LossOutput(per_token=-weight * batch.advantages * batch.logprobs, metrics=metrics)
