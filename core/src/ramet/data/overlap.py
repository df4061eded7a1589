"""Questions of a benchmark that are in training data: the same words, or most of the same runs of words.

Case, punctuation and spaces do not count, each Chinese or Japanese character is a word. Two questions are *similar* if
at least half of the runs of 8 words of the benchmark's are in one training question. (GPT-3 looked for runs of 13,
Brown et al. 2020, arXiv 2005.14165, appendix C: too long for questions, many of which have fewer words.)
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ramet.types import Task

RUN = 8  # words
SIMILAR = 0.5  # share of runs
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|(?:(?![{_CJK}_])\w)+")

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """One task of a benchmark, and the training task that is nearest to it. `shared` is 1 for the same words."""

    task: str  # id
    training: str  # id
    question: str  # of the benchmark
    shared: float  # share of the benchmark's runs of words


def overlaps(benchmark: Sequence[Task], training: Iterable[Task]) -> list[Overlap]:
    """Return the overlaps in the order of the benchmark; each of its tasks at most once."""
    words = [_words(task.question) for task in benchmark]
    equal: dict[Words, list[int]] = {}
    holders: dict[Words, set[int]] = {}  # run of words -> numbers of the benchmark's tasks
    for number, task_words in enumerate(words):
        equal.setdefault(task_words, []).append(number)
        for run in _runs(task_words):
            holders.setdefault(run, set()).add(number)
    best: dict[int, tuple[float, str]] = {}
    for task in training:
        task_words = _words(task.question)
        shared = {number: 1.0 for number in equal.get(task_words, ())} if task_words else {}
        hits = Counter(number for run in _runs(task_words) for number in holders.get(run, ()))
        shared = {number: n / len(_runs(words[number])) for number, n in hits.items()} | shared
        for number, share in shared.items():
            if share >= SIMILAR and share > best.get(number, (0.0, ""))[0]:
                best[number] = share, task.id
    return [
        Overlap(task=task.id, training=best[number][1], question=task.question, shared=best[number][0])
        for number, task in enumerate(benchmark)
        if number in best
    ]


def _words(text: str) -> Words:
    return tuple(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


def _runs(words: Words) -> set[Words]:
    return {words[start : start + RUN] for start in range(len(words) - RUN + 1)}
