"""The part of judging mathematics that needs no algebra: equal strings, and plain numbers."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")


def plainly_equal(gold: str, answer: str) -> bool | None:
    """True or False where that is plain to see, None where it takes algebra."""
    if "".join(gold.split()) == "".join(answer.split()):
        return True
    left, right = number(gold), number(answer)
    if left is None or right is None:
        return None
    if left == right:
        return True
    return False if left.denominator == right.denominator == 1 else None  # decimals may be rounded


def number(text: str) -> Fraction | None:
    """A whole text that is one decimal number, with or without thousands separators and a dollar sign."""
    bare = text.strip().strip("$").removeprefix("\\$").strip()
    if not any(char.isdigit() for char in bare) or not _NUMBER.fullmatch(bare) or not bare.isascii():
        return None
    return Fraction(bare.replace(",", ""))
