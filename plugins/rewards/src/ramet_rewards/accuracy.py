"""Accuracy of an answer, in [0, 1]: as mathematics if the gold answer is some, otherwise as text.

Rewards that judge more than the answer (`deep_research`, `format_correct`) are built on this.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ramet_rewards.boxed import words_of
from ramet_rewards.comparison import MathComparer, Verdict
from ramet_rewards.config import AccuracyConfig, Maths, Normalisation, TextScore
from ramet_rewards.equality import LABEL, agree, literals, quantity
from ramet_rewards.text import best_f1, exact_match

_COMMAND = re.compile(r"\\[A-Za-z]+")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf|textit)\s*\{[^{}]*\}")
_WORD = re.compile(r"[^\W\d_]{2,}|[\u3040-\u30ff\u3400-\u9fff]")
_FORMULA = re.compile(r"[\d\\^_=+*/<>≤≥≠√π∞∪∩!\N{MINUS SIGN}-]")
_LABEL = re.compile(rf"{LABEL.pattern}|[A-Z]-\d{{2,}}|\d+[A-Z]|C\+\+")  # F-16, 3D: to algebra 3d is another one
_PRODUCTS = re.compile(r"(?<![A-Za-z])(?:sin|cos|tan|log|ln|exp|sqrt|max|min|mod|[a-z]{2})(?![A-Za-z])")  # 2xy


class Accuracy:
    def __init__(self, config: AccuracyConfig) -> None:
        self.config = config
        self._comparer = MathComparer(config.math)

    async def of(self, golds: Sequence[str], answer: str) -> float | None:
        """The best over the gold answers; None: not judged. Neither answers nor gold answers are in boxes any more."""
        kind = self.config.maths
        maths = [gold for gold in golds if kind is Maths.ALWAYS or (kind is Maths.AUTO and is_mathematical(gold))]
        texts = [words_of(gold) for gold in golds if gold not in maths]
        score = best_f1 if self.config.text is TextScore.F1 else exact_match
        best = score(words_of(answer), texts, Normalisation.UNICODE) if texts else 0.0
        measured = [gold for gold in maths if quantity(gold)[1]]
        if any(same_quantity(gold, answer) for gold in measured):
            return 1.0
        formulas = [gold for gold in maths if gold not in measured]
        if best == 1.0 or not formulas:
            return best
        verdict = await self._comparer.compare(formulas, answer)
        return None if verdict is None else max(best, float(verdict is Verdict.EQUAL))

    async def aclose(self) -> None:
        await self._comparer.aclose()


def is_mathematical(gold: str) -> bool:
    """Whether a gold answer is a number, perhaps with a unit, or a formula: `5`, `50%`, `5 cm`, `x^2+1`, `(1, 2)`.

    Names, dates and the single letters of multiple choices are text.
    """
    if literals(gold):
        return True
    if _LABEL.fullmatch(gold):
        return False
    bare = _COMMAND.sub(" ", _TEXT.sub(" text ", gold)) if "\\" in gold else gold
    return bool(_FORMULA.search(gold)) and not _WORD.search(_PRODUCTS.sub(" ", bare))


def same_quantity(gold: str, answer: str) -> bool:
    """A gold answer with a unit. The answer may leave it out, as the question often names it; another one is wrong.

    Units are compared as they are written, but for a plural: nothing is converted.
    """
    wanted, unit = quantity(gold)
    values, answer_unit = quantity(answer)
    if not values:
        return bool(exact_match(answer, [gold], Normalisation.UNICODE))  # `the 1990s`
    return agree(wanted[0], values) and (not answer_unit or _singular(answer_unit) == _singular(unit))


def _singular(unit: str) -> str:
    return unit.removesuffix("s") if len(unit) > 2 else unit
