"""Options of AEPO."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ramet import EntropyScale, option


class ForkRule(StrEnum):
    """The rule of a fork by `score = (alpha + gamma * change) * (1 - penalty * l)`, clipped to [0, 1]."""

    THRESHOLD = "threshold"  # score > tau: the paper's
    BERNOULLI = "bernoulli"  # with probability score; tau is not read


class Consecutive(StrEnum):
    """The branch points that are counted in l."""

    PATH = "path"  # those directly before this turn on the rollout's own path, the forks it descends from included
    PROMPT = "prompt"  # all of the group, never reset


@dataclass(kw_only=True, slots=True)
class AepoConfig:
    """AEPO's dynamic entropy-balanced rollout (arXiv 2510.14545, §3). The budget M is `rollout.group_size`."""

    dynamic: bool = option(
        True, "the entropies of a first rollout (probe) set the number of roots; false: initial_rollouts"
    )
    early_roots: int = option(0, "roots that start at once, in addition to the probe", minimum=0)
    initial_rollouts: int | None = option(
        None, "roots without a probe; null: half of rollout.group_size, at least one", minimum=1
    )
    window: int = option(20, "tokens at the start of a turn whose entropies are compared", minimum=1)
    beta_root: float = option(
        10.0, "slope of roots = group_size * sigmoid(beta_root * (H_root - H_tool)), H the probe's entropies"
    )
    root_scale: EntropyScale = option(EntropyScale.MEAN_LN_VOCAB, "scale of H_root and H_tool")
    rule: ForkRule = option(
        ForkRule.THRESHOLD, "fork if the score is over tau (threshold), or with the score as probability (bernoulli)"
    )
    alpha: float = option(0.5, "constant of score = alpha + gamma * (change of entropy), before the penalty")
    gamma: float = option(0.2, "weight of the change of entropy in the score")
    tau: float = option(0.5, "threshold of the score; read by rule=threshold")
    normalizer: EntropyScale = option(EntropyScale.SUM_LN_VOCAB, "scale of the change of entropy")
    penalty: float = option(
        0.05, "share of the score that each consecutive branch point costs; 0: none", minimum=0, maximum=1
    )
    consecutive: Consecutive = option(
        Consecutive.PATH, "branch points that count as consecutive: of the rollout's path, or of the group (prompt)"
    )
    branches: int = option(1, "forks per decision", minimum=1)

    def __post_init__(self) -> None:
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

    clip_low: float = option(0.2, "lower clip of the ratio, at 1 - clip_low", minimum=0, below=1)
    clip_high: float = option(0.2, "upper clip of the ratio, at 1 + clip_high", minimum=0)
    dual_clip: float | None = option(
        3.0, "largest ratio where the advantage is negative (dual clip); null: no bound", above=1
    )
    entropy_above: float | None = option(
        None, "entropy in nats up to which tokens are clipped as in PPO; null: none are", minimum=0
    )


@dataclass(kw_only=True, slots=True)
class AepoAdvantageConfig:
    """AEPO's entropy-aware advantage (arXiv 2510.14545, §3)."""

    entropy_weight: float = option(0.2, "weight a of z, the z-score of a token's entropy; 0: GRPO's advantage")
    keep_sign: bool = option(True, "the factor 1 + a * z is at least 0, so that advantages keep their sign")
    normalize_std: bool = option(True, "divide by the standard deviation of the group")
    eps: float = option(1e-6, "added to the standard deviation, against division by 0", above=0)
