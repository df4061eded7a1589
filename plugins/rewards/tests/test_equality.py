from __future__ import annotations

from fractions import Fraction

import pytest

from ramet_rewards.equality import number, plainly_equal


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("18", "18", True),
        ("x + 1", "x+1", True),
        ("1000", "1,000", True),
        ("18", "$18", True),
        ("18", r"\$18.00", True),
        ("0.5", ".5", True),
        ("18", "-18", False),
        ("18", "81", False),
        ("0.333", "0.3333", None),
        ("1/2", "0.5", None),
        ("18", "eighteen", None),
        ("12", "1,2", None),
        ("12", "1 2", None),
        ("18", "", None),
        ("5", "٥", None),
    ],
)
def test_only_what_is_plain_is_decided(gold: str, answer: str, verdict: bool | None) -> None:
    assert plainly_equal(gold, answer) is verdict


def test_a_number_is_the_whole_text() -> None:
    assert number("-1,234.5") == Fraction("-1234.5")
    assert number("3 apples") is None
