"""The gap between engine and trainer: mu, which sampled, is not pi_old, even with the same weights.

With rho = pi_old / mu, each token's policy loss is weighed, without a gradient, by the product of the chosen factors:

* `tis_cap`: min(rho_t, cap), truncated importance sampling (Yao et al., "Your efficient RL framework secretly brings
  you off-policy RL training", 2025; the cap is IMPALA's, arXiv 1802.01561); with `tis_level=sequence`
  min(prod_t rho_t, cap) for all tokens of the sequence.
* `off_policy.token_band`: 0 where rho_t is outside [low, high] (IcePop, Ling Team, arXiv 2510.18855, with [0.5, 5]).
* `off_policy.sequence_band`: 0 for every token of a sequence whose exp(mean_t log rho_t) is outside (with
  [0.999, 1.001] the geometric rejection of verl's rollout correction). The mean does not grow with the length.
* `off_policy.negative_gap_max`: 0 for every token of a sequence with A < 0 and mean_t log(mu / pi) above it, pi being
  the current policy (DeepSeek-V3.2, arXiv 2512.02556): a failure that it would hardly sample any more teaches nothing.

Tokens of weight 0 stay in the denominators of the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ramet.algorithms.ratio import LIMIT, clamped, ratio_of
from ramet.algorithms.sequences import unit_means, unit_sums
from ramet.config.schema import TrainConfig
from ramet.types import LossInputs

MASKS = frozenset({"token_band", "sequence_band", "negative_gap_max"})  # of `train.off_policy`: what may weigh 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicy:
    """Per token, detached. `weight` is 1 where nothing was sampled."""

    weight: Tensor  # [T]
    truncated: Tensor  # [T] float, 1 where the cap applied
    clamped: Tensor  # [T] float, 1 where the ratio was beyond its bounds (`ratio.LIMIT`)
    left_out: Tensor  # [T] float, 1 where a band or the mask of negative sequences applied


@torch.no_grad()
def off_policy_weights(tokens: LossInputs, train: TrainConfig) -> OffPolicy:
    """Return the off-policy weight of each token, as the section `train` asks for it."""
    options = train.off_policy
    weights = truncated_weights(tokens, train.tis_cap, by_sequence=options.get("tis_level") == "sequence")
    kept = torch.ones_like(tokens.mask)
    if (band := options.get("token_band")) is not None:
        kept &= _within(ratio_of(tokens.old_logprobs, tokens.engine_logprobs), band)
    if (band := options.get("sequence_band")) is not None:
        gap = _sequence_mean(tokens.old_logprobs - tokens.engine_logprobs, tokens)
        kept &= _within(gap.clamp(-LIMIT, LIMIT).exp(), band)
    if (most := options.get("negative_gap_max")) is not None:
        gap = _sequence_mean(tokens.engine_logprobs - tokens.logprobs, tokens)
        kept &= (_sequence_mean(tokens.advantages, tokens) >= 0) | (gap <= most)
    kept |= ~tokens.mask
    return OffPolicy(
        weight=weights.weight * kept, truncated=weights.truncated, clamped=weights.clamped, left_out=(~kept).float()
    )


def truncated_weights(tokens: LossInputs, cap: float | None, *, by_sequence: bool) -> OffPolicy:
    """Truncated importance sampling, without bands. `cap` None switches it off: all weights are 1."""
    old, engine = tokens.old_logprobs, tokens.engine_logprobs
    none = torch.zeros_like(old)
    if cap is None:
        return OffPolicy(weight=torch.ones_like(old), truncated=none, clamped=none, left_out=none)
    if by_sequence:
        old, engine = unit_sums(old - engine, tokens.mask, tokens.sequence_ids), none
    ratio = ratio_of(old, engine).detach()
    return OffPolicy(
        weight=ratio.clamp(max=cap), truncated=(ratio > cap).float(), clamped=clamped(old, engine), left_out=none
    )


def _sequence_mean(values: Tensor, tokens: LossInputs) -> Tensor:
    return unit_means(values, tokens.mask, tokens.sequence_ids)


def _within(values: Tensor, band: list[float]) -> Tensor:
    return (values >= band[0]) & (values <= band[1])
