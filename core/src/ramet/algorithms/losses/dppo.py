"""DPPO: leaves out tokens by how far their probability moved, not by its ratio (Qi et al., arXiv 2602.04879).

    L_t = -sg[min(r_t, cap)] A_t log pi_t m_t        r_t = pi / mu
    m_t = 0 where the policy moved in the advantage's direction by more than the bound: pi > mu and A > 0 with
          D_t > bound_high, or pi < mu and A < 0 with D_t > bound_low; else 1
    D_t = |pi - mu|        tv, the total variation of "this token or another one"
    D_t = mu log(mu / pi) + (1 - mu) log((1 - mu) / (1 - pi))        kl, of the same two outcomes

mu are the engine's probabilities, from which mask and ratio are measured (§5.2): `train.old_logprobs=engine`, as in the
preset. With `trainer` they are measured from pi_old, which the paper advises against.

A ratio of 2 at a rare token is hardly a move (0.001 to 0.002) and is kept; PPO's clip would leave it out. The bounds of
0.15 and, kl, 0.05 are from the authors' script.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ramet.algorithms.losses.config import Divergence, DppoConfig
from ramet.algorithms.ratio import ratio_of
from ramet.types import LossInputs, LossOutput, Need

BOUNDS = {Divergence.TV: 0.15, Divergence.KL: 0.05}
TINY = 1e-8  # keeps the logarithm of 1 - pi finite where pi is 1


class Dppo:
    """Policy loss `dppo`."""

    needs: frozenset[Need] = frozenset()
    reads_ratio = True
    zero_without_advantage = True

    def __init__(self, config: DppoConfig) -> None:
        self.config = config
        bound = BOUNDS[config.divergence]
        self.low = bound if config.bound_low is None else config.bound_low
        self.high = bound if config.bound_high is None else config.bound_high

    def __call__(self, batch: LossInputs) -> LossOutput:
        config, logprobs = self.config, batch.logprobs.detach()
        distance = divergence(logprobs, batch.old_logprobs, config.divergence)
        rising = (batch.advantages > 0) & (logprobs > batch.old_logprobs) & (distance > self.high)
        falling = (batch.advantages < 0) & (logprobs < batch.old_logprobs) & (distance > self.low)
        left_out = rising | falling
        ratio = ratio_of(logprobs, batch.old_logprobs)
        weight = ratio.clamp(max=config.ratio_cap) * ~left_out
        metrics = {
            "clip_fraction": left_out.float(),
            "approx_kl": batch.old_logprobs - logprobs,
            "divergence": distance,
            "ratio": ratio,
        }
        return LossOutput(per_token=-weight * batch.advantages * batch.logprobs, metrics=metrics)


def divergence(logprobs: Tensor, old_logprobs: Tensor, kind: Divergence) -> Tensor:
    """D of the module's formula, of the same shape; at least 0."""
    probability, old = logprobs.exp().clamp(max=1), old_logprobs.exp().clamp(max=1)
    if kind is Divergence.TV:
        return (probability - old).abs()
    other = torch.log((1 - old + TINY) / (1 - probability + TINY))
    return (old * (old_logprobs - logprobs) + (1 - old) * other).clamp(min=0)
