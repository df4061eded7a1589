"""The part of judging mathematics that needs no algebra: equal strings, words, and plain numbers."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

from ramet_rewards.boxed import WRAPPER

MAX_DIGITS = 400  # of one number
MAX_LITERAL = 2000  # characters of one number with all that may be around it
ROUNDED = 6  # decimals: where two numbers agree so far they are equal
SIGNIFICANT = 3  # digits that must agree as well where so many decimals have fewer of the gold answer

UNIT_LETTERS = frozenset("mgshtlLNJWVACKFTΩ")  # any other letter after a number is a variable or a constant: 3i, 5x, 4π
NO_UNITS = frozenset(
    "pi tau phi theta alpha beta gamma lambda sqrt sin cos tan log ln exp xy yz xz xyz squared cubed factorial hundred "
    "thousand million billion trillion dozen half halves third thirds quarter quarters".split()
)  # words that make another number of it

_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?")
_WORDS = re.compile(r"[^\W\d_]{2,}(?:[\s.,;:!?'’-]+[^\W\d_]{2,})*[\s.,;:!?]*")
LABEL = re.compile(r"[A-Z][A-Za-z]*\d[A-Za-z\d]*")  # H2O, R2D2, B12: algebra would reorder them
_DIGITS = r"(?:\d{1,3}(?:(?:,|\{,\}|\\,|\\!)\d{3})+|\d+)?(?:\.\d+)?"
_INTEGER = r"[+-]?\s*\d+"
_FRACTION = (
    rf"\\[dt]?frac\s*(?:\{{\s*(?P<over>{_INTEGER})\s*\}}|(?P<over1>\d))"
    rf"\s*(?:\{{\s*(?P<under>{_INTEGER})\s*\}}|(?P<under1>\d))"
)
_SLASHED = r"\(?\s*(?P<top>\d+)\s*/\s*(?P<bottom>\d+)\s*\)?"
_POWER_OF_TEN = rf"(?:[eE]|(?:\\times|\\cdot|[x×*·])\s*10\s*\^)\s*\{{?(?P<power>{_INTEGER})\}}?"
_LITERAL = re.compile(
    rf"(?P<sign>[+-]?)\s*(?:(?P<whole>\d+\s*)?{_FRACTION}|(?P<whole1>\d+\s+)?{_SLASHED}"
    rf"|(?P<decimal>(?=[\d.]){_DIGITS}\.?)(?:\s*{_POWER_OF_TEN})?)\s*(?P<percent>\\?%)?"
)
_UNIT = re.compile(
    r"\s*(?:\\(?:text|mathrm|textbf)\s*\{[^{}\d]*\}|\^?\s*\{?\s*\\circ\s*\}?|°"
    r"|[^\W\d_][^\W\d_ ]*(?: [^\W\d_]{2,}){0,3})?\s*\.?"
)
_WORD = re.compile(r"(?<!\\)\b[^\W\d_]+")  # no name of a LaTeX command
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"))
_RUN = r"\d+(?: ?- ?\d+)+|\d+(?:/\d+){2,}|\d+(?:\.\d+){2,}|\d+(?::\d+){2,}"
_JOINED = re.compile(rf"(?:{_RUN})(?:, ?(?:{_RUN}))*\.?", re.ASCII)
_OPERATION = re.compile(r"[+*×·÷]|\\(?:times|cdot|div|pm|sum|int|prod|binom)(?![A-Za-z])|[\w)}\]]\s?-")
_IDLE_SPACE = re.compile(r"(?<!\w)\s+|\s+(?!\w)")
NAME = re.compile(r"(?:\\?[A-Za-z]+(?:_\{?\w+\}?)?'*(?:\([A-Za-z](?:,\s*[A-Za-z])*\))?|[A-Za-z][A-Za-z ]*)")


def plainly_equal(gold: str, answer: str) -> bool | None:
    """Whether they are equal, where that is plain to see; None where it takes algebra."""
    if _spaced(gold) == _spaced(answer) or _spaced(_unwrapped(gold)) == _spaced(_unwrapped(answer)):
        return True
    if is_words(gold) or LABEL.fullmatch(_unwrapped(gold)):
        return _normal_words(gold) == _normal_words(answer)
    if wanted := joined_numbers(gold):
        return joined_numbers(answer) == wanted
    gold_number, answer_number = number(gold), number(answer)
    if gold_number is None or answer_number is None:
        return _tiny_equal(gold, answer)
    if gold_number == answer_number:
        return True
    return False if gold_number.denominator == answer_number.denominator == 1 else None  # decimals may be rounded


def is_words(text: str) -> bool:
    """Whether all are words of two or more letters: text, which algebra would take for products of its letters."""
    return _WORDS.fullmatch(_unwrapped(text)) is not None


def joined_numbers(text: str) -> list[str]:
    """Numbers and what joins them, where that means no arithmetic: `3-2`, `1939–1945`, `1990-05-12`, `6-4, 6-3`.

    Of a date, a result, a span of years or an address algebra would see only the value, which another has too. Empty
    for all other texts.
    """
    plain = _unwrapped(text).translate(_DASHES)
    if len(plain) > MAX_LITERAL or not _JOINED.fullmatch(plain):
        return []
    return [part.lstrip("0") or "0" if part.isdecimal() else part for part in re.findall(r"\d+|[-/.:,]", plain)]


def number(text: str) -> Fraction | None:
    """A text that is one decimal number, with or without thousands separators and a dollar sign."""
    bare = text.strip().strip("$").removeprefix("\\$").strip()
    if len(bare) > MAX_DIGITS or not bare.isascii() or not any(char.isdigit() for char in bare):
        return None
    return Fraction(bare.replace(",", "")) if _NUMBER.fullmatch(bare) else None


def literals(answer: str) -> list[Fraction]:
    """The values of an answer that writes one number down; otherwise empty.

    A number (also in scientific notation), a fraction or a percentage, perhaps with `x =` in front and a unit after
    it. A percentage is read both ways: "what share" and "how many per cent" have the same kind of gold answer.
    """
    return quantity(answer)[0]


def quantity(answer: str) -> tuple[list[Fraction], str]:
    """The values of `literals`, and the unit after them as it is written, or empty."""
    short = " ".join(answer.split())  # long runs of spaces would be tried in every way
    if len(short) > MAX_LITERAL:
        return [], ""
    text = without_dollars(short)
    name, equals, rest = text.partition("=")
    if equals and NAME.fullmatch(name.strip()):
        text = rest.strip()
    literal = _LITERAL.match(text)
    if literal is None or not _UNIT.fullmatch(text, literal.end()) or not _is_unit(text[literal.end() :]):
        return [], ""
    value = _value(literal)
    if value is None:
        return [], ""
    unit = _unwrapped(text[literal.end() :]).rstrip(".").strip()
    return [value, value / 100] if literal["percent"] else [value], unit


def same_number(gold: Fraction, answer: str) -> bool:
    """Whether the answer writes the number of the gold answer down.

    Decimals that agree to six places are equal, if that is to three digits of the gold answer.
    """
    return agree(gold, literals(answer))


def plain_fraction(gold: str) -> Fraction | None:
    """The value of a text that is one fraction, without a name, a unit or a sign of per cent."""
    values, unit = quantity(gold)
    return values[0] if len(values) == 1 and not unit and "=" not in gold else None


def is_term(answer: str) -> bool:
    """Whether something is left to compute: `3/4-1/4` copies a question whose answer is 1/2."""
    return _OPERATION.search(answer.translate(_DASHES)) is not None


def agree(gold: Fraction, values: Sequence[Fraction]) -> bool:
    """Whether one of the values is the gold answer's, as `same_number` says."""
    decimals = ROUNDED
    while gold and abs(gold) * 10**decimals < 10 ** (SIGNIFICANT - 1):
        decimals += 1
    return any(round(value, decimals) == round(gold, decimals) for value in values)


def _tiny_equal(gold: str, answer: str) -> bool | None:
    """A gold answer too small for algebra, which rounds to six decimals, asks for a number. None for all others."""
    values = _powers_too(gold)
    if len(values) == 1 and 0 < abs(values[0]) * 10**ROUNDED < 10 ** (SIGNIFICANT - 1):
        return agree(values[0], _powers_too(answer))
    return None


def _powers_too(text: str) -> list[Fraction]:
    """`literals`, and a bare `10^{-7}`."""
    return literals(text) or literals(rf"1 \times {text.strip().strip('$')}")


def _is_unit(text: str) -> bool:
    words = _WORD.findall(text)
    variable = bool(words) and re.fullmatch(r"[A-Za-z\u0370-\u03ff]", words[0]) and words[0] not in UNIT_LETTERS
    return not variable and NO_UNITS.isdisjoint(word.casefold() for word in words)


def _spaced(text: str) -> str:
    """Remove the spaces that separate nothing: `x + 1` is `x+1`, but `1 2` is not `12`."""
    return _IDLE_SPACE.sub("", " ".join(text.split()))


def _unwrapped(text: str) -> str:
    return WRAPPER.sub(r"\1", text.strip().strip("$").strip())


def without_dollars(text: str) -> str:
    bare = text if text.isascii() else unicodedata.normalize("NFKC", "".join(map(_kept_apart, text)))
    bare = bare.replace("\N{MINUS SIGN}", "-").replace("\N{FRACTION SLASH}", "/").strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        if bare.startswith(opening) and bare.endswith(closing) and len(bare) > len(opening) + len(closing):
            bare = bare[len(opening) : -len(closing)].strip()
            break
    return bare.removeprefix("\\$").removeprefix("$").strip()


def _kept_apart(char: str) -> str:
    """Keep apart what normalisation would join to a digit: `5²`, `5₂`, `5②` are not 52, and `3½` is not 31/2."""
    kind = unicodedata.decomposition(char).partition(" ")[0]
    apart = {"<super>": "^", "<sub>": "_", "<fraction>": " ", "<circle>": " "}
    return apart.get(kind, "") + char


def _normal_words(text: str) -> str:
    plain = unicodedata.normalize("NFKC", _unwrapped(text)).casefold()
    return " ".join("".join(char if char.isalnum() else " " for char in plain).split())


def _value(literal: re.Match[str]) -> Fraction | None:
    sign = -1 if literal["sign"] == "-" else 1
    if literal["decimal"]:
        digits = re.sub(r"\{,\}|\\,|\\!|,", "", literal["decimal"]).rstrip(".")
        power = int(_bare(literal["power"] or "0")[:8])
        if not digits or len(digits) > MAX_DIGITS or abs(power) > MAX_DIGITS:
            return None
        return sign * Fraction(digits) * Fraction(10) ** power
    whole, top, bottom = (
        _bare(next((part for part in parts if part), "0"))
        for parts in (
            (literal["whole"], literal["whole1"]),
            (literal["over"], literal["over1"], literal["top"]),
            (literal["under"], literal["under1"], literal["bottom"]),
        )
    )
    if len(whole) + len(top) + len(bottom) > MAX_DIGITS or not int(bottom):
        return None
    return sign * (int(whole) + Fraction(int(top), int(bottom)))


def _bare(digits: str) -> str:
    return "".join(digits.split())
