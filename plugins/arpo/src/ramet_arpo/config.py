"""Options of ARPO."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ramet import EntropyScale, option

BETA, SCALE = 0.2, EntropyScale.SUM_LN_VOCAB


class Rule(StrEnum):
    """The rule of a fork by `score = alpha + beta * change`."""

    THRESHOLD = "threshold"  # score > tau: the paper's
    BERNOULLI = "bernoulli"  # with probability clip(score, 0, 1): the rule of the released models; tau is not read


class Budget(StrEnum):
    """The rollouts that may use the budget that the roots left."""

    SHARED = "shared"  # the first to ask
    PER_ROOT = "per_root"  # each root and its forks have an equal share


class Attribution(StrEnum):
    """The advantage of tokens that several rollouts share."""

    SOFT = "soft"  # in each rollout that rollout's own
    HARD = "hard"  # in all of them the mean over the rollouts that share the token
    OWN = "own"  # the one of the rollout that sampled the token; no other trains it


class Multiplicity(StrEnum):
    """The weight of a token that d rollouts share, all of them together."""

    ALL = "all"  # d: it is trained once per rollout
    SQRT = "sqrt"  # sqrt(d)
    ONE = "one"  # 1: as if the prefix were stored once


@dataclass(kw_only=True, slots=True)
class ArpoConfig:
    """ARPO's entropy-based adaptive rollout (arXiv 2507.19849, §3.1). The budget M is `rollout.group_size`."""

    initial_rollouts: int | None = option(
        None, "rollouts that start from the prompt (the paper's N); null: half of rollout.group_size", minimum=1
    )
    window: int | None = option(
        None, "tokens at the start of a turn whose entropies are compared; null: rollout.first_tokens", minimum=1
    )
    rule: Rule = option(
        Rule.THRESHOLD, "fork if the score is over tau (threshold), or with the score as probability (bernoulli)"
    )
    alpha: float = option(0.5, "constant of score = alpha + beta * (change of entropy)")
    beta: float = option(BETA, "weight of the change of entropy in the score")
    tau: float = option(
        0.5, "threshold of the score; equal to alpha: every rise of entropy forks, whatever beta and normalizer are"
    )
    branches: int = option(1, "forks per decision (the paper's Z, beam size)", minimum=1)
    max_forks_per_root: int | None = option(
        None, "most forks of a root and all its descendants; null: as the budget allows", minimum=0
    )
    budget: Budget = option(
        Budget.SHARED, "who may use the rest of the budget: the first to ask (shared), or each root its share"
    )
    normalizer: EntropyScale = option(SCALE, "scale of the change of entropy")

    @property
    def inert(self) -> list[str]:
        """Options that are not the paper's and that change no decision: where alpha is tau, only the sign of the change
        counts, and where beta is not above 0 another rule does. The paper's own values of both are equal.
        """
        if self.rule is not Rule.THRESHOLD or self.alpha != self.tau or self.beta <= 0:
            return []
        return [name for name, usual in (("beta", BETA), ("normalizer", SCALE)) if getattr(self, name) != usual]


@dataclass(kw_only=True, slots=True)
class ArpoAdvantageConfig:
    """ARPO's advantage attribution (arXiv 2507.19849, §3.2 and appendix D.1)."""

    attribution: Attribution = option(
        Attribution.SOFT,
        "advantage of shared tokens: each rollout's own (soft), the mean of those that share (hard), or trained only "
        "in the rollout that sampled them (own)",
    )
    multiplicity: Multiplicity = option(
        Multiplicity.ALL, "weight of a token that d rollouts share: d (all), sqrt(d) or 1 (one)"
    )
    normalize_std: bool = option(True, "divide by the standard deviation of the group")
    eps: float = option(1e-6, "added to the standard deviation, against division by 0", above=0)

    def __post_init__(self) -> None:
        if self.attribution is Attribution.OWN and self.multiplicity is not Multiplicity.ALL:
            raise ValueError(
                f"multiplicity={self.multiplicity.value}: with attribution=own a token is trained once, by the rollout "
                "that sampled it; allowed: all"
            )
