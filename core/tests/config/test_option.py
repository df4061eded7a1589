from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from ramet.types.option import Allowed, option, option_problems


@dataclass(kw_only=True, slots=True)
class Options:
    share: float = option(0.5, "of all", minimum=0, maximum=1)
    names: list[str] = option(factory=list, help="in order")


def test_default_help_and_range_are_those_of_the_field() -> None:
    share, names = dataclasses.fields(Options)
    assert Options() == Options(share=0.5, names=[]) and Options().names is not Options().names
    assert (share.metadata["help"], names.metadata["help"]) == ("of all", "in order")
    assert share.metadata["allowed"] == Allowed(minimum=0, maximum=1) and names.metadata["allowed"] is None


@pytest.mark.parametrize(
    ("allowed", "good", "bad", "problem"),
    [
        (Allowed(minimum=1), 1, 0, "must be at least 1"),
        (Allowed(above=0), 0.1, 0, "must be over 0"),
        (Allowed(minimum=0, maximum=1), 1, 1.5, "must be at least 0 and at most 1"),
        (Allowed(above=0, maximum=1), 1, float("nan"), "must be over 0 and at most 1"),
        (Allowed(minimum=0, below=float("inf")), 1, float("inf"), "must be at least 0 and finite"),
        (Allowed(choices=("local", "ray")), "ray", "mars", "allowed: local, ray"),
    ],
)
def test_a_value_that_is_not_allowed_is_told_what_is(allowed: Allowed, good: object, bad: object, problem: str) -> None:
    assert allowed.problem(good) is None and allowed.problem(None) is None
    assert allowed.problem(bad) == problem


def test_a_problem_names_its_option_and_its_value() -> None:
    assert list(option_problems(Options(share=2))) == ["share must be at least 0 and at most 1, got 2"]
