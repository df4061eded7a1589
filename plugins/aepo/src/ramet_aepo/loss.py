"""The clipped surrogate of PPO that keeps a gradient above the range (arXiv 2510.14545, §3).

With r = pi / pi_old the value equals PPO's with an asymmetric range and dual clip, at every r. So does the gradient,
except that A > 0 and r > 1 + high does not end it:

    gradient of the loss by log pi = -A * factor
    factor = 1 + high    A > 0 and r > 1 + high (PPO: 0)
             0           A < 0 and r < 1 - low, or r > dual_clip
             r           otherwise

The paper writes this as clip(r, 1 - low, (1 + high) / sg[r] * r) with a stop-gradient sg, which is NaN where r
under- or overflows. Here value and factor are computed from the difference of log-probabilities, which is cut to +-20
as in the core's losses (e^20 is beyond every clip range), so both are finite at any ratio.
"""

from __future__ import annotations

import math

import torch

from ramet import ConfigError, LossInputs, LossOutput, Need
from ramet_aepo.config import AepoLossConfig

LIMIT = 20.0


class AepoLoss:
    """The policy loss `aepo`."""

    reads_ratio = True
    zero_without_advantage = True

    def __init__(self, config: AepoLossConfig) -> None:
        self.config = config
        self.needs: frozenset[Need] = frozenset() if config.entropy_above is None else frozenset({Need.ENTROPY})

    def __call__(self, batch: LossInputs) -> LossOutput:
        config, advantages = self.config, batch.advantages
        low, high = math.log1p(-config.clip_low), math.log1p(config.clip_high)
        top = LIMIT if config.dual_clip is None else min(math.log(config.dual_clip), LIMIT)
        change = (batch.logprobs - batch.old_logprobs).detach()
        log_ratio = change.clamp(-LIMIT, LIMIT)
        gains = advantages > 0
        over, under = gains & (log_ratio > high), (advantages < 0) & (log_ratio < low)
        dual = (advantages < 0) & (log_ratio > top)
        balanced = over & self._uncertain(batch)
        bounded = torch.where(gains, log_ratio.clamp(max=high), log_ratio.clamp(low, top))
        value = -advantages * bounded.exp()
        slope = torch.where(balanced | ~(over | under | dual), value, 0.0)
        metrics = {
            "clip_fraction": (over | under).float(),
            "clip_fraction_low": dual.float(),
            "balanced_fraction": balanced.float(),
            "approx_kl": -change,
            "ratio": log_ratio.exp(),
        }
        moved = batch.logprobs - batch.logprobs.detach()  # 0; carries the gradient
        return LossOutput(per_token=value + slope * moved, metrics=metrics)

    def _uncertain(self, batch: LossInputs) -> torch.Tensor:
        """`[T]` bool: the tokens that are clipped in the balanced way."""
        if self.config.entropy_above is None:
            return torch.ones_like(batch.mask)
        if batch.entropies is None:
            raise ConfigError("policy_loss.params.entropy_above needs the entropies of tokens, and the batch has none")
        return batch.entropies.detach() > self.config.entropy_above
