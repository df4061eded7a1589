"""The measure of uncertainty of the released code: a part of the entropy of a segment's first tokens.

    H = - sum over the first k tokens, and over the log-probabilities l of each, of exp(l) * l, divided by ln V

A token's log-probabilities belong to the most likely tokens, and to itself if it is not among them. They are a part of
the distribution and are not normalised; the sum is not divided by k, so short segments have less. V is the number of
the tokenizer's tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TOP_LOGPROBS = 10  # of each token, in addition to its own


def segment_entropy(top_logprobs: Sequence[Sequence[float]], vocab_size: int) -> float:
    """0 for no tokens. NaN if a log-probability is -inf, as where `top_p` or `top_k` cut it off.

    `top_logprobs`: of each of the first k tokens.
    """
    return sum(-math.exp(logprob) * logprob for token in top_logprobs for logprob in token) / math.log(vocab_size)
