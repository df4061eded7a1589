"""`multiple_choice`: is the letter of the answer the gold one's?

`B`, `(B)`, `b.`, `B) Paris`, `Answer: B`, `option B` and `\\text{B}` are B; a letter that begins a sentence ("A cat is
one") and two letters are not a choice. Where the task has a column `choices` (texts in order, or by letter), the text
of the right choice is right too, and the gold answer may be that text. A gold answer of several letters (`A, C`) asks
for these letters, in any order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ramet import Reward, Rollout, per_rollout
from ramet_rewards.boxed import final, words_of
from ramet_rewards.config import MultipleChoiceConfig, Normalisation
from ramet_rewards.text import TOKENS, exact_match

_LEAD = r"(?:(?:the )?(?:(?:correct|final|best|right) )?(?:answer|option|choice)(?: is)? ?(?:[::] ?)?)*"
_WIDE = str.maketrans({chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)})
MOST_CHARS = 2000


def make(config: MultipleChoiceConfig) -> Reward:
    letter = rf"[{config.letters}{config.letters.lower()}]"
    pattern = re.compile(rf"{_LEAD}[\[(*$\s]*({letter})(?:[\])*$]*\s*|[\])*$]*[.:),、,](?:\s*\S.*)?)", re.S | re.I)

    def letter_of(text: str) -> str | None:
        stated = final(text)
        if len(stated) > MOST_CHARS:
            return None
        # Runs of spaces would be tried in every way.
        plain = " ".join(words_of(stated).translate(_WIDE).split())
        match = pattern.fullmatch(plain)
        rest = re.findall(rf"\b{letter}\b", plain[match.end(1) :]) if match else []
        return None if match is None or _names_another(match[1], rest) else match[1].upper()

    def score(rollout: Rollout) -> float:
        if rollout.answer is None:
            return 0.0
        choices = _choices(rollout.task.metadata.get(config.choices), config.letters)
        golds = {
            gold_letter for gold in rollout.task.answer if (gold_letter := letter_of(gold) or _by_text(gold, choices))
        }
        answer_letter = letter_of(rollout.answer) or _by_text(words_of(final(rollout.answer)[:MOST_CHARS]), choices)
        if not golds and (several := {all_of for gold in rollout.task.answer if (all_of := _several(gold, letter))}):
            return float(_several(words_of(final(rollout.answer)), letter) in several)
        if not golds:
            return exact_match(words_of(final(rollout.answer)), rollout.task.answer, Normalisation.UNICODE)
        return float(answer_letter in golds)

    return per_rollout(score)


def _names_another(letter: str, rest: Sequence[str]) -> bool:
    """`A, B` names two; the article in `B) a river` none, and capitals are what choices are written with."""
    return any(other.isupper() and other != letter.upper() for other in rest)


def _several(text: str, letter: str) -> frozenset[str]:
    """The letters of a text that is nothing but two or more of them: `A, C`, `(a) and (c)`. Empty for all others."""
    tokens = re.findall(r"\w+", text[:MOST_CHARS].translate(_WIDE).replace(" and ", ","))
    one_each = len(tokens) > 1 and all(re.fullmatch(letter, part) for part in tokens)
    return frozenset(part.upper() for part in tokens) if one_each else frozenset()


def _choices(column: object, letters: str) -> Mapping[str, str]:
    if isinstance(column, Mapping):
        return {str(letter).upper(): str(text) for letter, text in column.items()}
    return dict(zip(letters, map(str, column), strict=False)) if isinstance(column, list | tuple) else {}


def _by_text(text: str, choices: Mapping[str, str]) -> str | None:
    tokens = TOKENS[Normalisation.UNICODE]
    wanted = tokens(text)
    return next((letter for letter, choice in choices.items() if wanted and tokens(choice) == wanted), None)
