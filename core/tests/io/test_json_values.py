from __future__ import annotations

from typing import Any

import pytest

from ramet.io.json_values import MAX_NESTING, json_fault, too_deep, visible, visible_lines


def test_what_would_steer_a_terminal_is_written_as_an_escape():
    text = "\x1b[2Jred\x08\r\u202e \ue000é日\n\ttab"
    assert list(visible_lines(text)) == ["\\x1b[2Jred\\x08\\r\\u202e \\ue000é日", "\\ttab"]
    assert visible(text) == "\\x1b[2Jred\\x08\\r\\u202e \\ue000é日\n\\ttab"


def nested(levels: int, *, of: str) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value, "b": 0} if of == "objects" else [0, value]
    return value


@pytest.mark.parametrize("of", ["objects", "lists"])
def test_nesting_is_counted_in_levels_of_lists_and_objects(of: str):
    assert [too_deep(nested(levels, of=of), 3) for levels in range(6)] == [False, False, False, False, True, True]
    assert too_deep(nested(100_000, of=of)) and not too_deep(nested(MAX_NESTING, of=of))
    assert [too_deep([[]], most) for most in (1, 2)] == [True, False]


SURROGATE, NO_NUMBER = (
    "half of a surrogate pair, which is no character",
    "NaN or an infinite number, which JSON does not have",
)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({}, None),
        ({"a": "text \u00e9", "b": ""}, None),
        ({"a": "\ud83d", "b": "\ude00"}, SURROGATE),  # halves of different texts are no character either
        ({"\ud83d": "a"}, SURROGATE),
        ({"a": 1, "b": "\ud83d"}, SURROGATE),
        ({"a": float("nan")}, NO_NUMBER),
        ({"a": "x", "b": [float("inf")]}, NO_NUMBER),
        ("\ud83d", SURROGATE),
        ({"a": object()}, None),  # not from JSON
        ({1: "a"}, None),
    ],
)
def test_what_is_no_json_is_named(value: object, fault: str | None) -> None:
    assert json_fault(value) == fault


def test_flat_objects_are_one_level() -> None:
    assert [too_deep({"a": 1, "b": None}, most) for most in (0, 1)] == [True, False]
