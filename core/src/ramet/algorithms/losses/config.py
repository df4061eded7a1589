"""Options of the built-in policy losses. Imports nothing heavy: `ramet --help` loads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ramet.types.option import option


@dataclass(kw_only=True, slots=True)
class PpoClipConfig:
    """The clipped surrogate of PPO (arXiv 1707.06347)."""

    clip_low: float = option(
        0.2,
        "lower clip of the ratio, at 1 - clip_low",
        minimum=0,
        maximum=1,
        aka="clip_ratio clip_ratio_low epsilon eps_clip cliprange",
    )
    clip_high: float = option(
        0.2, "upper clip of the ratio, at 1 + clip_high; DAPO: 0.28", minimum=0, aka="clip_ratio_high epsilon_high"
    )
    dual_clip: float | None = option(
        3.0, "largest ratio where the advantage is negative (dual clip); null: no bound", above=1, aka="clip_ratio_c"
    )


class RatioUnit(StrEnum):
    """The unit with one ratio in GSPO."""

    SEQUENCE = "sequence"  # all sampled tokens of a thread, nearly always a rollout's
    TURN = "turn"  # the tokens of a turn


@dataclass(kw_only=True, slots=True)
class GspoConfig:
    """GSPO (arXiv 2507.18071): one ratio for a sequence, the geometric mean of its tokens' ratios."""

    unit: RatioUnit = option(RatioUnit.SEQUENCE, "what has one ratio: the rollout (sequence), or each turn")
    clip_low: float = option(3e-4, "lower clip of the ratio, at 1 - clip_low (turns: 3e-3)", minimum=0, maximum=1)
    clip_high: float = option(4e-4, "upper clip of the ratio, at 1 + clip_high (turns: 4e-3)", minimum=0)


@dataclass(kw_only=True, slots=True)
class CispoConfig:
    """CISPO (arXiv 2506.13585): REINFORCE weighted by the clipped ratio; no token loses its gradient."""

    clip_low: float = option(1.0, "smallest weight is 1 - clip_low; 1: no lower bound", minimum=0, maximum=1)
    clip_high: float = option(4.0, "largest weight is 1 + clip_high", minimum=0)


@dataclass(kw_only=True, slots=True)
class SapoConfig:
    """SAPO (arXiv 2511.20347): a sigmoid of the ratio instead of a clip."""

    tau_positive: float = option(1.0, "steepness where the advantage is positive", above=0)
    tau_negative: float = option(1.05, "steepness where the advantage is negative", above=0)


@dataclass(kw_only=True, slots=True)
class GmpoConfig:
    """GMPO (arXiv 2507.20673): the geometric mean of clipped ratios of a sequence."""

    clip_low: float = option(0.4, "lower clip of a token's log-ratio, at -clip_low", minimum=0)
    clip_high: float = option(0.4, "upper clip of a token's log-ratio, at clip_high", minimum=0)


@dataclass(kw_only=True, slots=True)
class M2poConfig:
    """M2PO (arXiv 2510.01161): tokens that moved farthest are left out until the rest moved little on average."""

    budget: float = option(
        0.04,
        "largest mean of (log ratio)^2 over the kept tokens of a sequence that the clip of PPO could hold",
        above=0,
    )


class Divergence(StrEnum):
    """How far two policies are apart at a token, seen as sampled or not sampled."""

    TV = "tv"  # |pi - mu|, the total variation
    KL = "kl"  # of mu from pi


@dataclass(kw_only=True, slots=True)
class DppoConfig:
    """DPPO (arXiv 2602.04879): tokens whose probability moved too far in the advantage's direction are left out."""

    divergence: Divergence = option(
        Divergence.TV, "measure of a token's move; tv: total variation; kl: binary KL divergence"
    )
    bound_low: float | None = option(
        None, "largest move where the advantage is negative; null: 0.15, kl: 0.05", minimum=0
    )
    bound_high: float | None = option(
        None, "largest move where the advantage is positive; null: as bound_low", minimum=0
    )
    ratio_cap: float = option(20.0, "largest ratio that weighs a token", above=0)
