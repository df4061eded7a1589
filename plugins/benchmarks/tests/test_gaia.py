from __future__ import annotations

import pytest

from ramet_benchmarks.gaia import quasi_equal


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("17", "17.0"), ("17", "$17"), ("1000", "1,000"), ("0.5", "0.5%"), ("a, b", "A,b"), ("3; 4", "3;4.0"),
     ("St. Petersburg", "st petersburg"), ("nan", "NaN"), ("5 cm", "5cm")],
)  # fmt: skip
def test_the_same_in_another_form_is_right(gold: str, answer: str) -> None:
    assert quasi_equal(gold, answer)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [("17", "17 apples"), ("17", ""), ("17", "inf"), ("a, b", "b, a"), ("a, b", "a"), ("a, b", "a, b, c"),
     ("a, b.", "a, b"), ("Rome", "The Rome"), ("5 cm", "50 mm"), ("-4", "4")],
)  # fmt: skip
def test_anything_else_is_wrong(gold: str, answer: str) -> None:
    assert not quasi_equal(gold, answer)
