"""`qa_f1`: token F1 between the answer and the nearest gold answer, as the question-answering data sets define it."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from ramet import Reward, Rollout, per_rollout
from ramet_rewards.boxed import final

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = {"yes", "no", "noanswer"}  # answers that share no token with a wrong one by nature: all or nothing


def make() -> Reward:
    return per_rollout(score)


def score(rollout: Rollout) -> float:
    return 0.0 if rollout.answer is None else f1(final(rollout.answer), rollout.task.answer)


def f1(answer: str, golds: Sequence[str]) -> float:
    """The best token F1 over the gold answers, in [0, 1]."""
    found = normalise(answer)
    return max((_f1(found, normalise(gold)) for gold in golds), default=0.0)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation, articles and surplus space."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def _f1(found: str, gold: str) -> float:
    if found != gold and (found in _CLOSED or gold in _CLOSED):
        return 0.0
    found_tokens, gold_tokens = found.split(), gold.split()
    shared = (Counter(found_tokens) & Counter(gold_tokens)).total()
    return 2 * shared / (len(found_tokens) + len(gold_tokens)) if shared else 0.0
