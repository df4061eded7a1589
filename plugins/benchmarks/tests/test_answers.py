from __future__ import annotations

from fractions import Fraction

import pytest

from ramet_benchmarks.answers import integer, number, unboxed


@pytest.mark.parametrize(
    "text", ["18", "$18", "18.0", r"\boxed{18}", r"so \boxed{\$18}.", "18 dollars", "18.", " +18 "]
)
def test_a_number_is_found_whatever_stands_around_it(text: str) -> None:
    assert number(text) == 18


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,000", 1000),
        ("1{,}000", 1000),
        ("-5", -5),
        ("-$5", -5),
        ("$-5", -5),
        ("\u22125", -5),
        ("- 5", -5),
        ("\u2013$5", -5),
        ("- $ 5", -5),
        ("2.5%", Fraction("2.5")),
        (".5", Fraction("0.5")),
        (r"\fbox{5}", 5),
        (r"\boxed {5\\}", 5),
    ],
)
def test_signs_separators_and_decimals_are_read(text: str, value: Fraction) -> None:
    assert number(text) == value


@pytest.mark.parametrize(
    "text", ["", "9" * 5000, "5½", "5²", "eighteen", "18\u201320", "between 18 and 20", r"\boxed{}", "18 = 9 * 2"]
)
def test_none_or_several_numbers_are_no_answer(text: str) -> None:
    assert number(text) is None


@pytest.mark.parametrize(("text", "value"), [("84", 84), (" 84\n", 84), ("-84", -84), (r"\boxed{84}", 84), ("084", 84)])
def test_whole_numbers_are_read(text: str, value: int) -> None:
    assert integer(text) == value


@pytest.mark.parametrize("text", ["", "84.0", "8 4", "84 apples", "1e3", "٨٤", "9" * 5000])
def test_everything_else_is_no_whole_number(text: str) -> None:
    assert integer(text) is None


def test_words_are_without_their_box_and_the_wrapper_of_latex() -> None:
    assert unboxed(r"it is \boxed{\text{St. Petersburg}}") == "St. Petersburg"
    assert unboxed(" Rome ") == "Rome"
