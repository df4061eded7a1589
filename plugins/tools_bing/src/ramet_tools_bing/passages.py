"""The passage of a page that an excerpt was taken from, with what is around it.

As in the evaluation of ARPO: the sentence whose words overlap most with the excerpt's (F1 of the two sets), if that is
more than a fifth, and so many characters before and after it; otherwise the beginning of the page.
"""

from __future__ import annotations

import re

LEAST_F1 = 0.2
_SENTENCE = re.compile(r"[^.!?。！？\n]*(?:[.!?。！？]+|\n|$)")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]|[^\W_]+")
_TAG = re.compile(r"</?(?:b|strong|em)>", re.IGNORECASE)


def words(text: str) -> frozenset[str]:
    """Lower-case words; characters of languages without blanks are words of their own."""
    return frozenset(_WORD.findall(text.lower()))


def f1(first: frozenset[str], second: frozenset[str]) -> float:
    common = len(first & second)
    return 2 * common / (len(first) + len(second)) if common else 0.0


def best_passage(page: str, excerpt: str, around_chars: int) -> str:
    """At most about `2 * around_chars` characters of the page."""
    target = words(_TAG.sub("", excerpt))
    best, place = LEAST_F1, None
    for found in _SENTENCE.finditer(page):
        score = f1(words(found[0]), target) if found[0].strip() else 0.0
        if score > best:
            best, place = score, found.span()
    if place is None:
        return page[: 2 * around_chars]
    return page[max(0, place[0] - around_chars) : place[1] + around_chars]
