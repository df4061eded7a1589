"""Options of ARPO."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Normalizer(StrEnum):
    """How the entropy change of k tokens becomes one number. V is the size of the vocabulary.

    The paper writes `sum_vocab`. It makes the change so small (about 1e-5) that only its sign matters when alpha
    equals tau; `sum_ln_vocab` is the scale of the released code, on which alpha and beta mean something.
    """

    SUM_VOCAB = "sum_vocab"  # sum / V
    SUM_LN_VOCAB = "sum_ln_vocab"  # sum / ln V
    MEAN_LN_VOCAB = "mean_ln_vocab"  # mean / ln V: does not grow with k


@dataclass(kw_only=True, slots=True)
class ArpoConfig:
    """ARPO's entropy-based adaptive rollout (arXiv 2507.19849, §3.1). The budget M is `rollout.group_size`.

    initial_rollouts: N, started from the prompt at once; null: half the budget, at least one.
    alpha, beta, tau: fork if alpha + beta * (change of entropy) > tau.
    branches: Z, forks per decision.
    normalizer: how the change of entropy is scaled.
    """

    initial_rollouts: int | None = None
    alpha: float = 0.5
    beta: float = 0.2
    tau: float = 0.5
    branches: int = 1
    normalizer: Normalizer = Normalizer.SUM_LN_VOCAB

    def __post_init__(self) -> None:
        if self.initial_rollouts is not None and self.initial_rollouts < 1:
            raise ValueError(f"initial_rollouts must be at least 1, got {self.initial_rollouts}")
        if self.branches < 1:
            raise ValueError(f"branches must be at least 1, got {self.branches}")
