"""The released evaluation: how it finds an answer in a rollout's text, scores it, and reads what its judge says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ramet_rewards.release.maths import is_equiv

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_JUDGMENT = re.compile(r"<judgment>(.*?)</judgment>", re.DOTALL)


def extract_answer(text: str) -> str:
    closing = text.rfind("</answer>")
    opening = text.rfind("<answer>", 0, closing) if closing != -1 else -1
    block = text[opening + len("<answer>") : closing].strip() if opening != -1 else ""
    if not block:
        return _unwrapped(_last_box(text))
    return _unwrapped(_last_box(block)) or block


def _last_box(text: str) -> str:
    """The last box with its wrapper; where it is never closed, the rest of the text."""
    start = text.rfind("\\boxed")
    if start < 0:
        return ""
    depth = 0
    for position in range(start, len(text)):
        depth += (text[position] == "{") - (text[position] == "}")
        if text[position] == "}" and depth == 0:
            return text[start : position + 1]
    return text[start:]


def _unwrapped(box: str) -> str:
    for opening in ("\\boxed{", "\\text{"):
        if box.startswith(opening) and box.endswith("}"):
            box = box[len(opening) : -1]
    return box


def math_metrics(answer: str, gold: Any) -> dict[str, float]:
    return _metrics(_plain(answer), _plain(str(gold)))


def qa_metrics(answer: str, golds: str | Sequence[str]) -> dict[str, float]:
    """The best of each metric over the gold answers; a string that begins with a bracket is taken for a list."""
    if isinstance(golds, str):
        golds = golds.strip("[]").split(",") if golds.startswith("[") else [golds]
    each = [_metrics(_without_articles(answer), _without_articles(str(gold))) for gold in golds]
    return {name: max((metrics[name] for metrics in each), default=0) for name in ("em", "acc", "f1", "math_equal")}


def _metrics(answer: str, gold: str) -> dict[str, float]:
    answer_words, wanted = answer.split(), gold.split()
    shared = (Counter(answer_words) & Counter(wanted)).total()
    return {
        "em": int(answer == gold),
        "acc": int(gold in answer),
        "f1": 2 * shared / (len(answer_words) + len(wanted)) if shared else 0,
        "math_equal": int(is_equiv(answer, gold)),
    }


def _plain(text: str) -> str:
    return " ".join(text.lower().split())


def _without_articles(text: str) -> str:
    return _plain(_ARTICLES.sub(" ", text.lower()))


def judged_right(reply: str, answer: str, gold: Any) -> bool:
    """Read the judge's words; an answer that equals the gold one as strings do is right, whatever they are."""
    said = _JUDGMENT.search(reply)
    text = (said[1] if said else reply).strip().lower()
    wrong = any(word in text for word in ("incorrect", "wrong", "not correct"))
    return is_equiv(answer, gold) or ("correct" in text and not wrong)
