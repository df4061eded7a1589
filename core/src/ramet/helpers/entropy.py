"""The change of entropy of ARPO, which says how much less certain a policy became (arXiv 2507.19849, §3.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum


class EntropyScale(StrEnum):
    """The way in which the entropy change of k tokens becomes one number. V is the size of the vocabulary.

    The ARPO paper writes `sum_vocab`. It makes the change so small (about 1e-5) that only its sign matters;
    `sum_ln_vocab` is the scale of the code that was released with it.
    """

    SUM_VOCAB = "sum_vocab"  # sum / V
    SUM_LN_VOCAB = "sum_ln_vocab"  # sum / ln V
    MEAN_LN_VOCAB = "mean_ln_vocab"  # mean / ln V: does not grow with k


def entropy_change(now: Sequence[float], before: Sequence[float], scale: EntropyScale, vocab_size: int) -> float:
    """The scaled sum of `now - before`, in nats, over the positions that both have; 0 without any.

    Positive: less certain than before.
    """
    differences = [new - old for new, old in zip(now, before, strict=False)]
    if not differences:
        return 0.0
    total = math.fsum(differences)
    match scale:
        case EntropyScale.SUM_VOCAB:
            return total / vocab_size
        case EntropyScale.SUM_LN_VOCAB:
            return total / math.log(vocab_size)
        case EntropyScale.MEAN_LN_VOCAB:
            return total / len(differences) / math.log(vocab_size)
