"""The clipped surrogate of PPO with an asymmetric range and dual clip.

L = max(-A r, -A clip(r, 1 - low, 1 + high))     PPO (arXiv 1707.06347, eq. 7); high over low: DAPO (2503.14476)
A < 0:  L = min(L, -A c)                          dual clip (arXiv 1912.09729, eq. 5)
"""

from __future__ import annotations

import torch

from ramet.algorithms.losses.config import PpoClipConfig
from ramet.algorithms.ratio import ratio_of
from ramet.types import LossInputs, LossOutput, Need


class PpoClip:
    """Policy loss `ppo_clip`."""

    needs: frozenset[Need] = frozenset()
    reads_ratio = True
    zero_without_advantage = True

    def __init__(self, config: PpoClipConfig) -> None:
        self.config = config

    def __call__(self, batch: LossInputs) -> LossOutput:
        config, advantages = self.config, batch.advantages
        ratio = ratio_of(batch.logprobs, batch.old_logprobs)
        free = -advantages * ratio
        clipped = -advantages * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        loss = torch.maximum(free, clipped)
        dual = torch.zeros_like(batch.mask)
        if config.dual_clip is not None:
            ceiling = -advantages * config.dual_clip
            dual = (loss > ceiling) & (advantages < 0)
            loss = torch.where(dual, ceiling, loss)
        metrics = {
            "clip_fraction": (clipped > free).float(),
            "clip_fraction_low": dual.float(),
            "approx_kl": (batch.old_logprobs - batch.logprobs).detach(),
            "ratio": ratio.detach(),
        }
        return LossOutput(per_token=loss, metrics=metrics)
