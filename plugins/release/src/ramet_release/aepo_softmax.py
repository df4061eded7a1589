"""Advantages weighed by a softmax of entropies: as in the project's documents, never in its code.

    A_i = (R_i - mean R) / (std R + eps)
    w_t = n_i * exp(H_t / T) / sum over the trained tokens s of rollout i of exp(H_s / T)
    A_it = A_i * w_t

The documents do not say over which tokens the softmax is, nor how it is scaled. Here it is over the n_i trained tokens
of a rollout, and its mean over them is 1, so that long rollouts do not lose their weight.
"""

from __future__ import annotations

import torch

from ramet import AdvantageInputs, AdvantageOutput, ConfigError, Need, group_statistics, rollout_scores
from ramet_release.config import AepoSoftmaxConfig


class AepoSoftmax:
    """The advantage estimator `aepo_softmax`."""

    needs = frozenset({Need.ENTROPY})
    reads_threads = True

    def __init__(self, config: AepoSoftmaxConfig) -> None:
        self.config = config

    def __call__(self, batch: AdvantageInputs) -> AdvantageOutput:
        if batch.entropies is None:
            raise ConfigError("advantage: aepo_softmax needs the entropies of tokens, and the batch has none")
        scaled = batch.entropies.detach().double() / self.config.temperature
        scaled = torch.where(batch.mask, scaled, -torch.inf)
        trained = batch.mask.sum(dim=1, keepdim=True)
        weights = torch.where(batch.mask, scaled.softmax(dim=1) * trained, 0.0)  # NaN where a row trains nothing
        scores = rollout_scores(batch)
        group = group_statistics(scores, batch.group_ids)
        of_rollouts = group.relative(scores, normalize_std=self.config.normalize_std, eps=self.config.eps)
        advantages = torch.where(batch.mask, of_rollouts[:, None], 0.0).float() * weights
        return AdvantageOutput(advantages=advantages.float(), metrics={})
