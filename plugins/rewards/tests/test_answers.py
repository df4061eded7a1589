"""What counts as a right answer in mathematics, as a table: gold answer, answer, score, and why where it is no matter
of course. The real comparing processes decide.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ramet import Score
from ramet_rewards.bounds import refused
from ramet_rewards.config import MathConfig
from ramet_rewards.math import MathReward

WORDS = [
    ("listen", "silent", 0.0, "anagrams are no equal products of letters"),
    ("silent", "listen", 0.0, ""),
    ("Rome", "more", 0.0, ""),
    ("Paris", "pairs", 0.0, ""),
    ("Paris", "paris", 1.0, "case says nothing"),
    ("Paris", " Paris. ", 1.0, "nor does a full stop"),
    ("Paris", r"\text{Paris}", 1.0, ""),
    (r"\text{Paris}", "Paris", 1.0, ""),
    ("New York", "new  york", 1.0, ""),
    ("New York", "York New", 0.0, "order counts"),
    ("New York", "New York City", 0.0, ""),
    ("Saint-Denis", "Saint Denis", 1.0, "punctuation says nothing"),
    ("yes", "no", 0.0, ""),
    ("yes", "Yes!", 1.0, ""),
    ("True", "true", 1.0, ""),
    ("ab", "ba", 0.0, "two letters are a word"),
    ("Zürich", "zürich", 1.0, ""),
    ("北京", "北京", 1.0, ""),
    ("北京", "京北", 0.0, ""),
    ("Monday", "day Mon", 0.0, ""),
    ("CO2", "C2O", 0.0, "labels are text"),
    ("CO2", "co2", 1.0, ""),
]
PLAIN_NUMBERS = [
    ("12", "12", 1.0, ""),
    ("12", "1 2", 0.0, "two numbers"),
    ("12", "1  2", 0.0, "however far apart"),
    ("52", "5₂", 0.0, "an index"),
    ("51", "5①", 0.0, "a number in a circle"),
    (r"\frac{1}{2}", r"\frac{3}{4}-\frac{1}{4}", 0.0, "the question, not the answer, of fractions too"),
    (r"\frac{1}{2}", r"2 \cdot \frac{1}{4}", 0.0, ""),
    ("3/2", "1+1/2", 0.0, ""),
    ("-1/2", "-0.5", 1.0, "a sign is no term"),
    (r"\frac{1}{2}", r"\left(\frac{1}{2}\right)", 1.0, ""),
    ("x=1/2", "1/2", 1.0, ""),
    ("2019-2020", "-1", 0.0, "a span of years is no difference"),
    ("12", "12.0", 1.0, ""),
    ("12", "+12", 1.0, ""),
    ("12", "-12", 0.0, ""),
    ("-12", "\N{MINUS SIGN}12", 1.0, "as typeset"),
    ("1234", "1,234", 1.0, ""),
    ("1234", r"1{,}234", 1.0, ""),
    ("391", "391", 1.0, ""),
    ("391", "17*23", 0.0, "the question, not the answer"),
    ("391", r"17 \times 23", 0.0, ""),
    ("391", r"17 \cdot 23", 0.0, ""),
    ("391", "400-9", 0.0, ""),
    ("391", "(391)", 0.0, "a literal has no brackets"),
    ("391", "x=391", 1.0, ""),
    ("391", "x = 391", 1.0, ""),
    ("391", r"$x=391$", 1.0, ""),
    ("391", r"\theta = 391", 1.0, ""),
    ("391", "f(x) = 391", 1.0, ""),
    ("391", "the area = 391", 1.0, ""),
    ("391", "17*23=391", 0.0, "a relation between numbers"),
    ("3", "4=3", 0.0, ""),
    ("5", "2=3=5", 0.0, ""),
    ("5", "x=y=5", 0.0, "a chain"),
    ("8", r"7 \vee 8", 0.0, "one of several"),
    ("8", r"7 \cup 8", 0.0, ""),
    ("8", "7, 8", 0.0, ""),
    ("8", "7 or 8", 0.0, ""),
    ("7", "6\n7", 0.0, ""),
    ("7", "$6$ $7$", 0.0, ""),
    ("7", "$7$", 1.0, ""),
    ("7", "$$7$$", 1.0, ""),
    ("7", r"\(7\)", 1.0, ""),
    ("7", r"\[7\]", 1.0, ""),
    ("7", "7.", 1.0, ""),
    ("7", "**7**", 1.0, "bold type"),
    ("7", "`7`", 1.0, ""),
    ("18", "18 apples", 1.0, "a unit"),
    ("18", r"18 \text{ cm}", 1.0, ""),
    ("18", r"18^\circ", 1.0, ""),
    ("18", r"\$18", 1.0, ""),
    ("18", "18 dollars", 1.0, ""),
    ("18", "18 or 19", 0.0, ""),
    ("18", "18 and 19 apples", 0.0, ""),
    ("0.5", "1/2", 1.0, ""),
    ("0.5", r"\frac{1}{2}", 1.0, ""),
    ("0.5", r"\frac12", 1.0, ""),
    ("0.5", r"\dfrac{1}{2}", 1.0, ""),
    ("3.5", "3 1/2", 1.0, "a mixed number"),
    ("3.5", r"3\frac{1}{2}", 1.0, ""),
    ("-0.5", "-1/2", 1.0, ""),
    ("0.5", "50%", 1.0, "a share"),
    ("50", r"50\%", 1.0, "how many per cent"),
    ("50", "0.5", 0.0, ""),
    ("0.333333", "1/3", 1.0, "equal to six decimals"),
    ("0.333", "1/3", 0.0, ""),
    ("0.333", "0.334", 0.0, ""),
    ("1500", "1.5e3", 1.0, ""),
    ("1500", r"1.5 \times 10^3", 1.0, ""),
    ("1500", r"1.5 \times 10^{3}", 1.0, ""),
    ("1500", "1.5 × 10^3", 1.0, ""),
    ("1500", r"1.5 \times 10^4", 0.0, ""),
    ("2", "1e999999999", 0.0, "out of bounds"),
    ("2", r"\frac{2}{0}", 0.0, ""),
    ("3", r"\sqrt{9}", 0.0, "a term"),
    ("1", "0!", 0.0, ""),
    ("12", "١٢", 1.0, "digits of another script"),
    ("12", "\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT TWO}", 1.0, ""),
    ("12", "twelve", 0.0, ""),
    ("3", "3i", 0.0, "a letter that is no unit is a variable, or a constant"),
    ("5", "5x", 0.0, ""),
    ("5", "5 n", 0.0, ""),
    ("5", "5xy", 0.0, ""),
    ("2", "2e", 0.0, ""),
    ("4", "4π", 0.0, ""),
    ("4", "4 pi", 0.0, ""),
    ("4", "4pi.", 0.0, ""),
    ("4", r"4\mathrm{i}", 0.0, ""),
    ("4", r"4\text{ i}", 0.0, ""),
    ("5", "5 squared", 0.0, "a word that changes the number"),
    ("5", "5 million", 0.0, ""),
    ("5", r"5 \text{ million dollars}", 0.0, ""),
    ("5", "5 m", 1.0, "metres"),
    ("5", "5cm", 1.0, ""),
    ("5", "5 N.", 1.0, ""),
    ("5", "5 元", 1.0, ""),
    ("52", "5²", 0.0, "a power, not a digit"),
    ("0.5", "½", 1.0, ""),
    ("3.5", "3½", 1.0, ""),
    ("15.5", "3½", 0.0, ""),
    ("0.0000003", "0.0000001", 0.0, "equal to six decimals, but to no digit of their own"),
    ("0.0000001", "0", 0.0, ""),
    ("0.0000003", r"3 \times 10^{-7}", 1.0, ""),
    ("0.0000003", "3.0001e-7", 1.0, "three digits agree"),
    ("0", "0.0000001", 1.0, "equal to six decimals"),
    ("12", "", 0.0, ""),
    ("12", "?", 0.0, ""),
]
ALGEBRA = [
    ("p - q", "-q+p", 1.0, "single letters are variables"),
    ("p - q", "q-p", 0.0, ""),
    ("a(a+b)", "a^2+ab", 1.0, ""),
    ("A", "A", 1.0, ""),
    ("A", "B", 0.0, ""),
    (r"\sqrt{2}", r"\frac{2}{\sqrt{2}}", 1.0, ""),
    (r"\sqrt{2}", "1.41", 0.0, ""),
    (r"\sqrt{2}", r"x=\sqrt{2}", 1.0, ""),
    (r"\sqrt{2}", r"1=\sqrt{2}", 0.0, "a relation between numbers"),
    (r"\sqrt{2}", r"\sqrt{3}=\sqrt{2}", 0.0, ""),
    (r"\sqrt{2}", r"$\sqrt{3}$ $\sqrt{2}$", 0.0, "several formulas"),
    ("x=3", "x=3", 1.0, ""),
    ("x^2+2x+1", "(1+x)^2", 1.0, ""),
    (r"\frac{\pi}{4}", r"\pi/4", 1.0, ""),
    ("(1,2)", "(1, 2)", 1.0, ""),
    ("(1,2)", "(2,1)", 0.0, ""),
    (r"\{1,2\}", "$1$, $2$", 1.0, "two values are asked for"),
    ("50%", r"50\%", 1.0, ""),
    ("10^{10}", "10000000000", 1.0, ""),
    (r"2^{10}", "1024", 1.0, ""),
    (r"6.63 \times 10^{-34}", "10^{-34}", 0.0, "algebra rounds to six decimals"),
    (r"6.63 \times 10^{-34}", "1e-34", 0.0, ""),
    (r"6.63 \times 10^{-34}", r"6.63 \cdot 10^{-34} \text{ J s}", 1.0, ""),
    ("10^{-7}", "10^{-9}", 0.0, ""),
    ("10^{-7}", "0.0000001", 1.0, ""),
    (r"\frac{1}{1000000}", "10^{-6}", 1.0, ""),
    (r"6.63 \times 10^{-34}", "0", 0.0, ""),
    ("2,3", r"x=2 \text{ or } x=3", 1.0, "two values are asked for, and named"),
    (r"\{2,3\}", "x=2, x=3", 1.0, ""),
    ("2,3", "x_1=2, x_2=3", 1.0, ""),
    ("2,3", "x=2, x=4", 0.0, ""),
    ("2,3", "x=2=3, y=3", 0.0, "a chain"),
    ("2,3", "1=2, 2=3", 0.0, ""),
    (r"\sqrt{2}", r"x=1, x=\sqrt{2}", 0.0, "one is asked for"),
    (r"\sqrt{2}", r"\sqrt{2}\!", 1.0, "a narrow space is no factorial"),
    ("x^2+1", r"x^2\!+1", 1.0, ""),
]
HOSTILE = [
    ("391", "1" * 4301, 0.0, "more digits than Python converts"),
    (r"\sqrt{2}", "1" * 4301, 0.0, ""),
    (r"\sqrt{2}", "2^{2^{2^{2^{2^{2}}}}}", 0.0, "a tower"),
    (r"\sqrt{2}", "9^{9^{9^{9}}}", 0.0, ""),
    (r"\sqrt{2}", "9^9^9^9", 0.0, ""),
    (r"\sqrt{2}", "9**9**9**9", 0.0, ""),
    (r"\sqrt{2}", "9999999999!", 0.0, ""),
    (r"\sqrt{2}", "(10^{8})!", 0.0, ""),
    (r"\sqrt{2}", "9!!!!!!!!", 0.0, ""),
    (r"\sqrt{2}", "2^{1000000000}", 0.0, ""),
    (r"\sqrt{2}", "(" * 3000, 0.0, ""),
    (r"\sqrt{2}", "{" * 3000, 0.0, ""),
    (r"\sqrt{2}", r"\sqrt" * 500, 0.0, ""),
    (r"\sqrt{2}", r"\frac{" * 2500, 0.0, "too long"),
    (r"\sqrt{2}", "\\boxed{" * 4000, 0.0, ""),
    (r"\sqrt{2}", "\x00\x01", 0.0, ""),
    (r"\sqrt{2}", "\N{RIGHT-TO-LEFT OVERRIDE}2", 0.0, ""),
    (r"\sqrt{2}", "x" * 1_000_000, 0.0, "a megabyte"),
    ("391", "9^{9^{9^{9}}}", 0.0, ""),
    ("Paris", "9^{9^{9^{9}}}", 0.0, ""),
]
TABLE = [*WORDS, *PLAIN_NUMBERS, *ALGEBRA, *HOSTILE]


@pytest.fixture(scope="module")
def reward() -> Iterator[MathReward]:
    made = MathReward(MathConfig(workers=1, timeout_s=3.0))
    yield made
    asyncio.run(made.aclose())


def score(reward: MathReward, write: Any, gold: str, answer: str) -> float | None:
    [found] = asyncio.run(reward([write.answer(answer, gold)]))  # type: ignore[arg-type]
    return found.value  # type: ignore[union-attr]


@pytest.mark.parametrize(("gold", "answer", "expected", "why"), TABLE, ids=[f"{g}-{a}"[:60] for g, a, _, _ in TABLE])
def test_an_answer_has_the_score_of_the_table(
    reward: MathReward, write: Any, gold: str, answer: str, expected: float, why: str
) -> None:
    assert score(reward, write, gold, answer) == expected, why


def test_the_table_is_as_long_as_it_should_be() -> None:
    assert len(TABLE) >= 100


def test_hostile_answers_are_refused_without_algebra_and_quickly() -> None:
    started = time.process_time()
    assert [answer[:20] for gold, answer, _, _ in HOSTILE[1:14] if refused(gold, answer) is None] == []
    assert time.process_time() - started < 2.0


SPACES = " " * 30_000  # a few hundred tokens of most vocabularies


@pytest.mark.parametrize(
    "answer",
    [
        f"1{SPACES}x!", f"-{SPACES}5{SPACES}/{SPACES}x", rf"\frac{SPACES}{{{SPACES}5{SPACES}}}{SPACES}{{x",
        rf"5{SPACES}\times{SPACES}10{SPACES}^{SPACES}{{x", "1" * 400 + "a!" * 790, "½" * 300_000,
        "5^" + " " * 1900 + "x",
    ],
    ids=["unit", "slash", "fraction", "power", "factorials", "long", "exponent"],
)  # fmt: skip
def test_no_answer_keeps_the_event_loop_busy(write: Any, answer: str) -> None:
    """All that is looked at before the comparing process is, is looked at in the loop that plays the other rollouts."""
    reward = MathReward(MathConfig(workers=1))
    started = time.process_time()
    assert [score(reward, write, gold, answer) for gold in ("5", "0.5")] == [0.0, 0.0]
    refused("y", answer[:2000])
    assert time.process_time() - started < 0.5


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("806*9", "the answer '806*9' does not equal the gold answer '7254'; it is a term, which is not computed "),
        ("7253", "the answer '7253' does not equal the gold answer '7254'"),
        ("7254", "the answer '7254' equals the gold answer '7254'"),
        (None, "there is no answer"),
    ],
)
def test_a_score_says_why(write: Any, answer: str | None, reason: str) -> None:
    reward = MathReward(MathConfig(workers=1))
    (scored,) = asyncio.run(reward([write.answer(answer, "7254")]))
    assert isinstance(scored, Score) and str(scored.reason).startswith(reason)


@pytest.mark.parametrize(
    ("answer", "expected"), [("17*23", 1.0), (r"17 \times 23", 1.0), ("17*24", 0.0), ("782/2", 1.0)]
)
def test_terms_can_be_allowed(write: Any, answer: str, expected: float) -> None:
    lenient = MathReward(MathConfig(workers=1, allow_terms=True))
    assert score(lenient, write, "391", answer) == expected
    asyncio.run(lenient.aclose())


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("1" * 2001, "too long"),
        ("1" * 401, "digits in a row: more than 400"),
        ("(" * 25, "nested brackets: more than 24"),
        ("2^{2^{2^{2}}}", "exponents on top of each other: more than 2"),
        ("2^{10001}", "an exponent: more than 10000"),
        ("10^{10^{10}}", "an exponent: more than 10000"),
        ("10**10**10", "an exponent: more than 10000"),
        ("1^{2^{-99999}}", "an exponent: more than 10000"),
        ("x^{1^{99999}}", None),
        ("1001!", "a factorial: more than 1000"),
        ("(n+1)!", "a factorial: more than 1000"),
        ("$1$ and $2$", "several formulas"),
        ("a=b=c", "a chain of relations"),
        (r"(10^8)! \!", "a factorial: more than 1000"),
        ("1=x", "a relation where a value is asked for"),
        ("n!", None),
        ("2^{2^{2}}", None),
        ("x=1", None),
    ],
)
def test_each_bound_says_what_it_is(answer: str, reason: str | None) -> None:
    assert refused("y", answer) == reason


def test_what_the_gold_answer_holds_is_allowed() -> None:
    for term in ("2^{2^{2^{2}}}", "1001!", "(n+1)!", "a=b=c", "$1$ and $2$", "2^{10001}"):
        assert refused(term, term) is None


def test_a_narrow_space_in_the_gold_answer_allows_no_factorial() -> None:
    assert refused(r"10,\!000x", "(10^8)!") == "a factorial: more than 1000"


def test_an_empty_answer_is_never_right(reward: MathReward, write: Any) -> None:
    [found] = asyncio.run(reward([write.answer("", r"\boxed{}", "5")]))
    assert found.value == 0.0
