"""Short answers as text: two normalisations, equality and token F1.

`SQUAD` is what the question-answering data sets define (Rajpurkar et al., arXiv 1606.05250). `UNICODE` is for rewards:

* compatible forms are one (NFKC: full-width digits, ligatures), and so are accents on Latin letters;
* punctuation of every script separates words, apostrophes and the dots of abbreviations vanish; signs of mathematics
  are tokens (`x<5` is not `x>5`, C++ is not C), and so is a text of only signs;
* numbers keep sign and decimals (-5 is not 5, 1.5 is not 15, .5 is not 5, 5² is not 52), thousands separators and
  trailing zeros say nothing;
* articles go, unless no other word is left (the `A` of a multiple choice), and so does `a` only before a word or a
  number (not in `vitamin A` and `A, C`);
* each Chinese or Japanese character is one token, and F1 counts the longest run of tokens in common, as CMRC
  2018 does (Cui et al., arXiv 1810.07366), so that order counts where words are not separated.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

from ramet_rewards.config import Normalisation

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_CLOSED = (("yes",), ("no",), ("noanswer",))  # share no token with a wrong one by nature: all or nothing
_ARTICLES = {"a", "an", "the"}
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_MARKED_LATIN = re.compile(r"([a-z])[\u0300-\u036f]+")
_ABBREVIATION = re.compile(r"\b(?:[^\W\d_]\.){2,}")
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-"))
_UNSEEN = re.compile("[\u0591-\u05c7\u064b-\u065f\u0670\ufe00-\ufe0f]")  # points of Hebrew and Arabic, forms of emoji
_CODES = range(0x300, 0x3100)  # in which the marks and signs of all scripts in use are
_MARKS = "".join(
    chr(code) for code in _CODES if unicodedata.category(chr(code)) in ("Mn", "Mc")
)  # vowels of Hindi, Thai
_SIGNS = "+<>=±×÷¬" + "".join(chr(code) for code in _CODES if unicodedata.category(chr(code)) == "Sm")
_SIGNS = _SIGNS.replace("\N{FRACTION SLASH}", "")  # ½ is 1/2
_TOKEN = re.compile(
    r"(?P<number>(?:(?<![\w)\]])-)?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<![\w.)\]])\.\d+))"
    rf"|[{_CJK}]|(?:(?![{_CJK}\d_])[\w{_MARKS}])+|(?<=[a-z])#|(?!(?<![\w)\]])\+[\d.])[{_SIGNS}]"
)
MOST_CHARS = 20_000  # of an answer; what follows is not read, and shares nothing with a gold answer
SHOWN_CHARS = 60  # of an answer, in a reason
MOST_RUN = 400  # tokens of the gold answer in which runs in common are looked for

Tokens = tuple[str, ...]


def squad_tokens(text: str) -> Tokens:
    """A text of only articles and punctuation is its own token."""
    return tuple(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split()) or tuple(text.lower().split())


def unicode_tokens(text: str) -> Tokens:
    """A text without any token is one itself, so that ∞ is equal to nothing but ∞."""
    plain = unicodedata.normalize("NFKC", numbers_apart(text[:MOST_CHARS])).casefold().translate(_DASHES)
    plain = unicodedata.normalize("NFC", _MARKED_LATIN.sub(r"\1", unicodedata.normalize("NFD", plain)))
    plain = _ABBREVIATION.sub(lambda match: match[0].replace(".", ""), plain)
    plain = _UNSEEN.sub("", re.sub(r"['\u2018\u2019\u02bc]", "", plain))
    tokens = [_number(match[0]) if match["number"] else match[0] for match in _TOKEN.finditer(plain)]
    words = [token for token, after in zip(tokens, [*tokens[1:], ""], strict=False) if not _is_article(token, after)]
    return tuple(words or tokens or plain.split())


def _is_article(token: str, after: str) -> bool:
    return token in _ARTICLES and (token != "a" or len(after) > 1 or after.isdecimal())


def numbers_apart(text: str) -> str:
    """NFKC would join these to the digit before them: `5²` is not 52, `5①` not 51, and `3½` not 31/2."""
    if text.isascii():
        return text
    pairs = zip(text, " " + text, strict=False)  # each character, and the one before it
    return "".join(f" {char}" if before.isdecimal() and _is_form(char) else char for char, before in pairs)


def _is_form(char: str) -> bool:
    return unicodedata.decomposition(char).startswith(("<super>", "<sub>", "<fraction>", "<circle>", "<compat>"))


TOKENS: dict[Normalisation, Callable[[str], Tokens]] = {
    Normalisation.SQUAD: squad_tokens,
    Normalisation.UNICODE: unicode_tokens,
}


def quoted(*texts: str) -> str:
    """Return answers as a reason shows them: the first three, cut to 60 characters."""
    return " | ".join(repr(text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 1] + "…") for text in texts[:3])


def exact_match(answer: str, golds: Sequence[str], kind: Normalisation, *, within: bool = False) -> float:
    """1 if the answer equals a gold answer, or contains one with `within`; otherwise 0. Empty gold answers do not count
    there."""
    tokens = TOKENS[kind]
    answer_tokens = tokens(answer)
    for gold in golds:
        wanted = tokens(gold)
        if answer_tokens == wanted or (within and wanted and _holds(answer_tokens, wanted)):
            return 1.0
    return 0.0


def best_f1(answer: str, golds: Sequence[str], kind: Normalisation) -> float:
    """The best token F1 over the gold answers, in [0, 1]."""
    tokens = TOKENS[kind]
    answer_tokens = tokens(answer)
    return max(
        (_f1(answer_tokens, tokens(gold), in_order=kind is Normalisation.UNICODE) for gold in golds), default=0.0
    )


def _f1(answer_tokens: Tokens, wanted: Tokens, *, in_order: bool) -> float:
    if answer_tokens != wanted and (answer_tokens in _CLOSED or wanted in _CLOSED):
        return 0.0
    if in_order and any(re.match(f"[{_CJK}]", token) for token in wanted):
        shared = _longest_run(answer_tokens, wanted[:MOST_RUN])
    else:
        shared = (Counter(answer_tokens) & Counter(wanted)).total()
    return 2 * shared / (len(answer_tokens) + len(wanted)) if shared else 0.0


def _longest_run(answer_tokens: Tokens, wanted: Tokens) -> int:
    """Length of the longest run of tokens that is in both."""
    longest = 0
    before = [0] * (len(wanted) + 1)  # runs that end at the answer token before, by position in `wanted`
    places: dict[str, list[int]] = {}
    for position, token in enumerate(wanted):
        places.setdefault(token, []).append(position)
    for token in answer_tokens:
        now = [0] * (len(wanted) + 1) if token in places or any(before) else before
        for position in places.get(token, ()):
            now[position + 1] = before[position] + 1
            longest = max(longest, now[position + 1])
        before = now
    return longest


def _holds(answer_tokens: Tokens, wanted: Tokens) -> bool:
    return f" {' '.join(wanted)} " in f" {' '.join(answer_tokens)} "


def _number(text: str) -> str:
    plain = text.replace(",", "")
    sign, digits = ("-", plain[1:]) if plain.startswith("-") else ("", plain)
    whole, _, decimals = digits.partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    return f"{sign}{whole}{'.' if decimals else ''}{decimals}"
