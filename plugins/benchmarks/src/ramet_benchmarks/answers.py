"""Reading final answers: out of their box, and as numbers."""

from __future__ import annotations

import re
from fractions import Fraction

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[+-]?\.\d+")
_BOX = "\\boxed{"


def last_box(text: str) -> str | None:
    r"""What is in the last `\boxed{…}`, up to the brace that closes it; None if there is none or it is not closed."""
    start = text.rfind(_BOX)
    depth = 1
    for position in range(start + len(_BOX), len(text)) if start >= 0 else ():
        escaped = text[position - 1] == "\\"
        depth += 0 if escaped else (text[position] == "{") - (text[position] == "}")
        if depth == 0:
            return text[start + len(_BOX) : position].strip()
    return None


def unboxed(answer: str) -> str:
    """The content of the last box, if there is one, else all of it."""
    content = last_box(answer)
    return answer.strip() if content is None else content


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
