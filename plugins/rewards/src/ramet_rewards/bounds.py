"""Bounds of the answers that are given to algebra: what one may not be, however its value would be computed.

A computer algebra system can be kept busy for ever by one short line, and it reads more into a text than a person would
accept as an answer. Both are in the hands of the model that writes it, so such an answer is wrong; it is never "not
judged", which would take it out of the training.
"""

from __future__ import annotations

import math
import re

from ramet_rewards.equality import MAX_DIGITS, NAME, without_dollars

MAX_CHARS = 2000  # of an answer; a longer gold answer raises it
MAX_DEPTH = 24  # of nested brackets
MAX_TOWER = 2  # exponents on top of each other
MAX_EXPONENT = 10_000
MAX_FACTORIAL = 1000
_SPACE = re.compile(r"\\!")  # a narrow one, and no factorial
_BETWEEN = re.compile(r",|;|\\(?:text|mathrm)\s*\{\s*(?:and|or)\s*\}|\b(?:and|or)\b")  # several values
_POWER = re.compile(r"(?:\^|\*\*)\s*[({]?\s*[+-]?\s*(\d+)(?:\s*(?:\^|\*\*)\s*[({]?\s*[+-]?\s*(\d+))?")  # of a number
_RELATION = re.compile(r"=|<|>|\\(?:leq?|geq?|neq?|lt|gt|approx|equiv|sim|in)\b|≤|≥|≠|≈|≡")


def refused(gold: str, answer: str) -> str | None:
    """Why an answer is wrong without being computed; None if it may be given to algebra.

    Parts of the gold answer itself are allowed.
    """
    if len(answer) > max(MAX_CHARS, 4 * len(gold)):
        return "too long"
    if _n_formulas(answer) > max(1, _n_formulas(gold), gold.count(",") + 1):
        return "several formulas"
    gold, answer = (" ".join(_SPACE.sub(" ", text).split()) for text in (gold, answer))  # no run of spaces to try
    for what, measure, most in (
        ("digits in a row", _longest_digits, MAX_DIGITS),
        ("nested brackets", _depth, MAX_DEPTH),
        ("exponents on top of each other", _tower, MAX_TOWER),
        ("an exponent", _largest_exponent, MAX_EXPONENT),
        ("a factorial", _largest_factorial, MAX_FACTORIAL),
    ):
        if measure(answer) > max(most, measure(gold)):
            return f"{what}: more than {most}"
    return _wrong_relation(gold, answer)


def _wrong_relation(gold: str, answer: str) -> str | None:
    """`2=3=5` states three numbers, and `4=3` another one than it seems. `x = 3` names what it gives, and so does each
    of `x = 2, x = 3` where two values are asked for.
    """
    allowed = len(_RELATION.findall(gold))
    parts = _BETWEEN.split(answer)
    if len(parts) > gold.count(",") + 1:
        parts = [answer]
    for part in parts:
        relations = list(_RELATION.finditer(part))
        if len(relations) > max(1, allowed):
            return "a chain of relations"
        if (
            relations
            and not allowed
            and not NAME.fullmatch(without_dollars(part[: relations[0].start()] + " ").strip("$ "))
        ):
            return "a relation where a value is asked for"
    return None


def _longest_digits(text: str) -> int:
    return max((len(run) for run in re.findall(r"\d+", text)), default=0)


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _tower(text: str) -> int:
    """Exponents on top of each other: 3 for `2^{2^{2^2}}`, for `2^2^2^2` and for `2**2**2**2`."""
    open_powers: list[bool] = []  # of the brackets that are open: whether an exponent
    chain = highest = 0
    position = 0
    while position < len(text):
        char = text[position]
        if char == "^" or text.startswith("**", position):
            position += 2 if char == "*" else 1
            while position < len(text) and text[position].isspace():
                position += 1
            chain += 1
            highest = max(highest, chain + sum(open_powers))
            if position < len(text) and text[position] in "({":
                open_powers.append(True)
                chain = 0
                position += 1
            continue
        if char in "({[":
            open_powers.append(False)
            chain = 0
        elif char in ")}]" and open_powers:
            chain = 1 if open_powers.pop() else 0
        elif char in "+-*/=,; \\":
            chain = 0
        position += 1
    return highest


def _largest_exponent(text: str) -> int:
    powers = _POWER.findall(text)
    return max((_power(int(base[:12]), int(digits[:12] or "1")) for base, digits in powers), default=0)


def _power(base: int, exponent: int) -> int:
    """`base ** exponent`, or a number beyond every bound."""
    return base**exponent if base < 2 or exponent * math.log10(base) < 12 else 10**12


def _largest_factorial(text: str) -> int:
    """The largest number with a `!`; beyond every bound where the `!` follows anything but a small number."""
    largest = 0
    for of in re.findall(r"(\d+|[A-Za-z])?\s*!", text):
        if not of:
            return 10**12  # of a bracket or of another factorial
        if of.isdecimal():
            largest = max(largest, int(of[:12]))
    return largest


def _n_formulas(text: str) -> int:
    """Formulas between dollars, or one on each line."""
    lines = [line for line in re.split(r"\n|\\\\", text) if re.search(r"\d", line)]
    return max(len(re.findall(r"\$[^$]+\$", text)), len(lines), 1)
