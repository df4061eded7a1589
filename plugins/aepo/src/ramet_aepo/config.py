"""Options of AEPO."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ramet import EntropyScale


class ForkRule(StrEnum):
    """When a rollout is forked, by `score = (alpha + gamma * change) * (1 - penalty * l)`, clipped to [0, 1]."""

    THRESHOLD = "threshold"  # score > tau: the paper's
    BERNOULLI = "bernoulli"  # with probability score; tau is not read


class Consecutive(StrEnum):
    """Which branch points are counted in l."""

    PATH = "path"  # those directly before this turn on the rollout's own path, the forks it descends from included
    PROMPT = "prompt"  # all of the group, never reset


@dataclass(kw_only=True, slots=True)
class AepoConfig:
    """AEPO's dynamic entropy-balanced rollout (arXiv 2510.14545, §3). The budget M is `rollout.group_size`."""

    dynamic: bool = True  # a first rollout's entropies say how many roots there are; false: initial_rollouts
    early_roots: int = 0  # roots that start with the probe, so that the engine has work meanwhile
    initial_rollouts: int | None = None  # roots without the probe; null: half the budget, at least one
    window: int = 20  # k, tokens at the start of a turn whose entropies are compared
    beta_root: float = 10.0  # m = M * sigmoid(beta_root * (H_root - H_tool))
    root_scale: EntropyScale = EntropyScale.MEAN_LN_VOCAB  # how these two are scaled
    rule: ForkRule = ForkRule.THRESHOLD  # threshold or bernoulli
    alpha: float = 0.5  # score = alpha + gamma * (change of entropy), before the penalty
    gamma: float = 0.2
    tau: float = 0.5  # threshold of the score
    normalizer: EntropyScale = EntropyScale.SUM_LN_VOCAB  # how that change is scaled
    penalty: float = 0.05  # of each consecutive branch point; 0: none
    consecutive: Consecutive = Consecutive.PATH  # counted by path or by prompt
    branches: int = 1  # forks per decision

    def __post_init__(self) -> None:
        for name, least in (("early_roots", 0), ("initial_rollouts", 1), ("window", 1), ("branches", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not 0 <= self.penalty <= 1:
            raise ValueError(f"penalty must be in [0, 1], got {self.penalty:g}")
        if self.dynamic and self.initial_rollouts is not None:
            raise ValueError(
                f"initial_rollouts is {self.initial_rollouts}, but with dynamic=true the probe says how many roots "
                "there are; set dynamic=false, or leave it out"
            )
        if not self.dynamic and self.early_roots:
            raise ValueError(
                f"early_roots is {self.early_roots}, but with dynamic=false there is no probe; use initial_rollouts"
            )


@dataclass(kw_only=True, slots=True)
class AepoLossConfig:
    """AEPO's entropy-balanced clipping (arXiv 2510.14545, §3)."""

    clip_low: float = 0.2  # the ratio's range is [1 - clip_low, 1 + clip_high]
    clip_high: float = 0.2
    dual_clip: float | None = 3.0  # bounds the loss where A < 0; null: not
    entropy_above: float | None = None  # nats; up to this entropy tokens are clipped as in PPO; null: none are

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low < 1:
            raise ValueError(f"clip_low must be in [0, 1), got {self.clip_low:g}")
        if self.clip_high < 0:
            raise ValueError(f"clip_high must not be negative, got {self.clip_high:g}")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip must be over 1 or null, got {self.dual_clip:g}")
        if self.entropy_above is not None and self.entropy_above < 0:
            raise ValueError(f"entropy_above must not be negative, got {self.entropy_above:g}")


@dataclass(kw_only=True, slots=True)
class AepoAdvantageConfig:
    """AEPO's entropy-aware advantage (arXiv 2510.14545, §3)."""

    entropy_weight: float = 0.2  # a, of the z-score of a token's entropy; 0: the advantage of the group alone
    keep_sign: bool = True  # the factor 1 + a * z is at least 0, so that it never turns an advantage around
    normalize_std: bool = True  # divide by the standard deviation of the group
    eps: float = 1e-6  # added to it

    def __post_init__(self) -> None:
        if self.eps <= 0:
            raise ValueError(f"eps must be above 0, got {self.eps:g}")
