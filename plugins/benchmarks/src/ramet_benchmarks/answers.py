"""Reading a number out of a final answer."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[+-]?\.\d+")
_BOX = "\\boxed{"


def unboxed(answer: str) -> str:
    r"""The content of the last `\boxed{…}`, if there is one. Numbers hold no braces, so the next one closes it."""
    start = answer.rfind(_BOX)
    end = answer.find("}", start)
    return (answer[start + len(_BOX) : end] if 0 <= start < end else answer).strip()


def integer(answer: str) -> int | None:
    """The answer as a whole number; None if it is anything else."""
    text = unboxed(answer)
    return int(text) if re.fullmatch(r"[+-]?\d{1,4000}", text, re.ASCII) else None


def number(answer: str) -> Fraction | None:
    """The one number of the answer, whatever unit is around it; None if there is none or more than one."""
    text = unboxed(answer).replace("\\$", "$").replace("{,}", ",").replace("\\,", "")
    found = _NUMBER.findall(text)
    if len(found) != 1:
        return None
    value = Fraction(found[0].replace(",", ""))
    negative = re.match(r"\s*-\s*\$", text) is not None  # -$5
    return -value if negative else value
