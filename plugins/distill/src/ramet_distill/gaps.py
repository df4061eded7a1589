"""The difference of two models' log-probabilities of the sampled tokens: an estimate of the reverse KL."""

from __future__ import annotations

import torch
from torch import Tensor

from ramet import AdvantageInputs, ConfigError


def likelier(batch: AdvantageInputs, name: str, max_gap: float | None) -> Tensor:
    """`[N, T]` float32: log p - log pi_old of each sampled token, p the model or context that scored it again.

    In expectation over pi_old minus the KL from pi_old to p. 0 outside the mask and where nothing scored the token; at
    most `max_gap` nats either way.
    """
    if batch.rescored_logprobs is None or batch.old_logprobs is None:
        raise ConfigError(f"advantage: {name} needs rescored and old log-probabilities, and the batch has none")
    gap = batch.rescored_logprobs - batch.old_logprobs
    gap = torch.where(batch.mask & ~gap.isnan(), gap, 0.0)
    return gap if max_gap is None else gap.clamp(-max_gap, max_gap)


def mean_of_tokens(values: Tensor, mask: Tensor) -> float:
    """Return the mean of `values` `[N, T]` over the mask; 0 without a token, as in a group that sampled none."""
    return float(values[mask].mean()) if mask.any() else 0.0
