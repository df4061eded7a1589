"""Reading final answers: out of their box, and as numbers."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

MAX_DIGITS = 400
_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[+-]?\.\d+")
_SIGN_APART = re.compile(r"\s*-\s*\$?\s*(?=[\d.])")  # of -$5 and - 5
_DASHES = str.maketrans(dict.fromkeys("\u2012\u2013\u2212\uff0d", "-"))
_WRAPPER = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf)\s*\{([^{}]*)\}")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")


def last_box(text: str) -> str | None:
    r"""The content of the last `\boxed{…}`, up to the brace that closes it; None without one or if it is not closed."""
    start = max((opening.end() for opening in _BOX.finditer(text)), default=len(text))
    depth, escaped = 1, False
    for position in range(start, len(text)):
        char = text[position]
        depth += 0 if escaped else (char == "{") - (char == "}")
        escaped = char == "\\" and not escaped
        if depth == 0:
            return text[start:position].strip()
    return None


def unboxed(answer: str) -> str:
    r"""The content of the last box, or all of it without a box; without the wrapper of `\text{New York}`."""
    content = last_box(answer)
    return _WRAPPER.sub(r"\1", answer.strip() if content is None else content)


def integer(answer: str) -> int | None:
    """Return the answer as a whole number; otherwise None."""
    text = unboxed(answer)
    return int(text) if re.fullmatch(r"[+-]?\d{1,4000}", text, re.ASCII) else None


def number(answer: str) -> Fraction | None:
    """Return the one number of the answer, whatever unit is around it; None without one or with several.

    A number of more than 400 digits does not count: Python refuses to read thousands. In `5½` and `5²` there are two.
    """
    text = unboxed(answer).translate(_DASHES).replace("\\$", "$").replace("{,}", ",").replace("\\,", "")
    numbers = _NUMBER.findall(text)
    if len(numbers) != 1 or len(numbers[0]) > MAX_DIGITS or any(unicodedata.category(char) == "No" for char in text):
        return None
    value = Fraction(numbers[0].replace(",", ""))
    return -value if _SIGN_APART.match(text) and numbers[0][0] != "-" else value
