from __future__ import annotations

from typing import Any

import pytest

from ramet.io.json_values import MAX_NESTING, too_deep, visible, visible_lines


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
