"""What the mended rewards take for right, as tables with reasons: gold answers with units, in other orders, with signs,
in other languages and words. The real comparing processes decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ramet_rewards.accuracy import Accuracy, is_mathematical
from ramet_rewards.config import AccuracyConfig, MathConfig, Maths, TextScore

NUMBERS = [  # gold answer, answer, accuracy, why
    ("5", "-5", 0.0, "sign: the release took it for right"),
    ("-5", "\N{MINUS SIGN}5", 1.0, "sign as typeset"),
    ("15", "1.5", 0.0, "decimals: the release took it for right"),
    ("12", "1/2", 0.0, "a fraction: the release took it for right"),
    ("1/2", "0.5", 1.0, "another way of writing it"),
    (r"\frac{1}{2}", "1/2", 1.0, "the release gave 0"),
    (r"3\sqrt{3}-6", r"3\sqrt{3} - 6", 1.0, "spaces: the release gave 0"),
    (r"3\sqrt{3}-6", r"-6+3\sqrt{3}", 1.0, "order of terms"),
    ("(1, 2)", "(1,2)", 1.0, "spaces"),
    ("(1, 2)", "(2, 1)", 0.0, "a pair has an order: the release gave 1"),
    (r"\{1, 2\}", r"\{2, 1\}", 1.0, "a set has none"),
    ("3x^2", "3x2", 0.0, "the release took it for right"),
    ("x=3", "3", 1.0, "the name of the unknown"),
    ("1000", "1,000", 1.0, "thousands"),
    ("2024", "２０２４", 1.0, "full width"),
    ("50%", "50", 1.0, "per cent, with the sign or without"),
    ("50%", "0.5", 1.0, "and as a share"),
    ("5", "the 5 apples", 0.0, "a sentence is no number; the release gave 2/3"),
    ("5", "5 apples", 1.0, "a number and what it counts"),
    ("5", "five", 0.0, "words for numbers are not read; a judge reads them"),
    ("5", "6", 0.0, ""),
    ("5", "**5**", 1.0, "bold type"),
    ("-i", "i", 0.0, "a sign before a letter"),
    ("p - q", "q - p", 0.0, "order of a difference"),
    ("p - q", "-q+p", 1.0, ""),
    ("n!", "n", 0.0, "a factorial"),
]
UNITS = [
    ("5 cm", "5 cm", 1.0, ""),
    ("5 cm", "5", 1.0, "the question often names the unit"),
    ("5 cm", "5cm.", 1.0, ""),
    ("5 cm", r"5 \text{ cm}", 1.0, "the release gave 0.8"),
    ("5 cm", "-5 cm", 0.0, "a sign"),
    ("5 cm", "5 m", 0.0, "another unit"),
    ("5 cm", "0.05 m", 0.0, "units are not converted"),
    ("5 cm", "6 cm", 0.0, "a shared unit is worth nothing"),
    ("5 apples", "5 apple", 1.0, "a plural"),
    ("5 kg", "5 kilograms", 0.0, "units are compared as they are written; a judge knows more"),
    ("5 dollars", "$5", 1.0, "the sign is no unit of its own"),
    ("2024年", "2024", 1.0, "a unit in Chinese"),
    ("2024年", "２０２４年", 1.0, "full width"),
    ("2024年", "2023年", 0.0, ""),
    ("161.27元", "161.27 元", 1.0, ""),
    ("1990s", "the 1990s", 1.0, "words around it that are no more than an article"),
]
TEXTS = [
    ("A", "A", 1.0, "a multiple choice: the release gave 0"),
    ("A", "(a)", 1.0, ""),
    ("A", "B", 0.0, ""),
    ("Paris", "paris.", 1.0, ""),
    ("Paris", r"\text{Paris}", 1.0, "wrappers of LaTeX, which a prompt that asks for a box invites"),
    (r"\text{Paris}", r"\textbf{\text{paris}}.", 1.0, ""),
    ("New York", "New~York", 1.0, ""),
    ("Paris", "The city of Paris", 0.5, "a paraphrase is worth the words in common"),
    ("Ang Lee", "Lee Ang", 1.0, "order of names"),
    ("Müller", "Muller", 1.0, "accents: the release gave 0"),
    ("王小明", "王 小明", 1.0, "spaces in Chinese: the release gave 0"),
    ("北京", "北京，中国", 2 / 3, "more than was asked for"),
    ("北京", "Beijing", 0.0, "names are not translated; a judge knows more"),
    ("June 5, 1990", "5 June 1990", 1.0, "a date is text"),
    ("June 5, 1990", "June 6, 1990", 2 / 3, "and worth the words in common"),
    ("yes", "no", 0.0, ""),
    ("vitamin A", "vitamin", 2 / 3, "no article"),
    ("vitamin A", "Vitamin A.", 1.0, ""),
    ("A, C", "C", 2 / 3, "nor this one"),
    ("3D", "3d", 1.0, "a label is text, of which the case says nothing"),
    ("F-16", "f-16", 1.0, ""),
    ("C++", "c++", 1.0, ""),
    ("Apollo 11", "Apollo 12", 0.5, "a name with a number is text"),
    ("H2O", "OH2", 0.4, "and so is one with a number in it: algebra would reorder it"),
    ("3-2", "3–2", 1.0, "a result is two numbers"),
    ("3-2", "1", 0.0, "and no difference"),
    ("3-2", "2-1", 0.0, ""),
    ("1990-05-12", "1990-5-12", 1.0, "a date in numbers"),
    ("1990-05-12", "1990-12-05", 0.0, "has an order"),
    ("12/05/1990", "05/12/1990", 0.0, ""),
    ("1939–1945", "1939 - 1945", 1.0, "a span of years"),
    ("1939–1945", "-6", 0.0, ""),
    ("6-4, 6-3", "6-3, 6-4", 0.0, "sets of a match"),
    ("192.168.0.1", "192.168.0.1", 1.0, "an address"),
]
ALL = [*NUMBERS, *UNITS, *TEXTS]
IDS = [f"{gold}-{answer}" for gold, answer, _, _ in ALL]


@pytest.fixture(scope="module")
def accuracy() -> Iterator[Accuracy]:
    made = Accuracy(AccuracyConfig(math=MathConfig(workers=1)))
    yield made
    asyncio.run(made.aclose())


@pytest.mark.parametrize(("gold", "answer", "expected", "why"), ALL, ids=IDS)
def test_a_perturbed_answer_is_as_right_as_the_table_says(
    accuracy: Accuracy, gold: str, answer: str, expected: float, why: str
) -> None:
    assert asyncio.run(accuracy.of([gold], answer)) == pytest.approx(expected), why


@pytest.mark.parametrize("gold", ["5", "-5", "1,000", "50%", "5 cm", "2024年", "(1, 2)", "x^2+1", r"\frac{1}{2}",
                                  r"\{1,2\}", "x=3", "2xy+1", r"90^\circ", "[4,\\infty)", "1/2", r"\pi"])  # fmt: skip
def test_numbers_and_formulas_are_mathematical(gold: str) -> None:
    assert is_mathematical(gold)


@pytest.mark.parametrize("gold", ["A", "Paris", "June 5, 1990", "Apollo 11", "王小明", "yes", "3 apples and 5 pears",
                                  r"\text{Paris}", "https://a.b/c?d=e", "AC/DC", ""])  # fmt: skip
def test_names_dates_and_letters_are_text(gold: str) -> None:
    assert not is_mathematical(gold)


def test_the_best_gold_answer_counts_whatever_it_is(accuracy: Accuracy) -> None:
    for answer in ("42", "forty-two", "the forty-two"):
        assert asyncio.run(accuracy.of(["forty-two", "42"], answer)) == 1.0
    assert asyncio.run(accuracy.of(["forty-two", "42"], "forty")) == pytest.approx(2 / 3)


def test_texts_may_be_all_or_nothing_and_mathematics_always_or_never() -> None:
    exact = Accuracy(AccuracyConfig(text=TextScore.EM, maths=Maths.NEVER))
    assert asyncio.run(exact.of(["Paris"], "city of Paris")) == 0.0
    assert asyncio.run(exact.of(["0.5"], "1/2")) == 0.0
    always = Accuracy(AccuracyConfig(maths=Maths.ALWAYS, math=MathConfig(workers=1)))
    assert asyncio.run(always.of(["Paris"], "city of Paris")) == 0.0
    asyncio.run(always.aclose())
