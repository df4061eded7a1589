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
    """Who may use the budget that the roots left."""

    SHARED = "shared"  # the first to ask
    PER_ROOT = "per_root"  # each root and its forks have an equal share


class Attribution(StrEnum):
    """The advantage of tokens that several rollouts share."""

    SOFT = "soft"  # in each rollout that rollout's own
    HARD = "hard"  # in all of them the mean over the rollouts that share the token


class Multiplicity(StrEnum):
    """The weight of a token that d rollouts share, all of them together."""

    ALL = "all"  # d: it is trained once per rollout
    SQRT = "sqrt"  # sqrt(d)
    ONE = "one"  # 1: as if the prefix were stored once


@dataclass(kw_only=True, slots=True)
class ArpoConfig:
    """ARPO's entropy-based adaptive rollout (arXiv 2507.19849, §3.1). The budget M is `rollout.group_size`."""

    initial_rollouts: int | None = option(
        None, "N, started from the prompt at once; null: half the budget, at least one", minimum=1
    )
    window: int | None = option(
        None, "k, tokens whose entropies are compared; null: all of rollout.first_tokens", minimum=1
    )
    rule: Rule = option(Rule.THRESHOLD, "fork where the score is over tau, or with the score as its probability")
    alpha: float = option(0.5, "score = alpha + beta * (change of entropy)")
    beta: float = BETA
    tau: float = option(
        0.5, "threshold of the score; equal to alpha: every rise forks, whatever beta and normalizer are"
    )
    branches: int = option(1, "Z, forks per decision (beam size)", minimum=1)
    max_forks_per_root: int | None = option(
        None, "of a root and all that descend from it; null: as the budget allows", minimum=0
    )
    budget: Budget = option(Budget.SHARED, "who may use what the roots left: the first to ask, or each root its share")
    normalizer: EntropyScale = option(SCALE, "how the change of entropy is scaled")

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
        Attribution.SOFT, "of shared tokens: each rollout's own, or the mean of those that share"
    )
    multiplicity: Multiplicity = option(
        Multiplicity.ALL, "how much a token counts that d rollouts share: d, sqrt(d) or 1"
    )
    normalize_std: bool = option(True, "divide by the standard deviation of the group")
    eps: float = option(1e-6, "added to it", above=0)
