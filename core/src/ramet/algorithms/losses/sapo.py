"""SAPO: a soft gate instead of a clip (Gao et al., arXiv 2511.20347).

    L_t = -A_t (4 / tau) sigmoid(tau (r_t - 1))        tau = tau_positive where A_t > 0, otherwise tau_negative

At r = 1 the gradient equals the gradient of -A r; further away it fades, by tau_negative > tau_positive faster where A
< 0.
"""

from __future__ import annotations

import torch

from ramet.algorithms.losses.config import SapoConfig
from ramet.algorithms.ratio import ratio_of
from ramet.types import LossInputs, LossOutput, Need


class Sapo:
    """Policy loss `sapo`."""

    needs: frozenset[Need] = frozenset()
    reads_ratio = True
    zero_without_advantage = True

    def __init__(self, config: SapoConfig) -> None:
        self.config = config

    def __call__(self, batch: LossInputs) -> LossOutput:
        ratio = ratio_of(batch.logprobs, batch.old_logprobs)
        tau = torch.where(batch.advantages > 0, self.config.tau_positive, self.config.tau_negative)
        gate = torch.sigmoid(tau * (ratio - 1))
        metrics = {
            "gate": (4 * gate * (1 - gate)).detach(),  # 1 where nothing fades
            "approx_kl": (batch.old_logprobs - batch.logprobs).detach(),
            "ratio": ratio.detach(),
        }
        return LossOutput(per_token=-batch.advantages * 4 / tau * gate, metrics=metrics)
