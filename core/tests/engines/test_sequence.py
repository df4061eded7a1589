"""Stop strings in sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ramet.engines.sequence import StopStrings
from ramet.models.encoder import Encoder


def first_stop(encoder: Encoder, text: str, stops: Sequence[str], *, special: bool = True) -> tuple[int, str] | None:
    """After how many tokens of the text which stop string was found."""
    matcher = StopStrings(tuple(stops), encoder)
    ids = list(encoder.markup(text) if special else encoder.untrusted(text))
    for n in range(1, len(ids) + 1):
        found = matcher.found(ids[:n])
        if found is not None:
            return n, found
    return None


def test_a_tag_of_one_token_and_the_same_tag_spelled_out_both_stop(encoder: Encoder) -> None:
    assert first_stop(encoder, "1+1</python>2", ["</python>"]) == (4, "</python>")
    assert first_stop(encoder, "1+1</python>2", ["</python>"], special=False) == (12, "</python>")


def test_the_stop_string_that_ends_first_wins_and_then_the_longest(encoder: Encoder) -> None:
    assert first_stop(encoder, "xabcd", ["abcd", "bc"]) == (4, "bc")
    assert first_stop(encoder, "xabc", ["c", "abc", "bc"]) == (4, "abc")


@pytest.mark.parametrize("stop", ["é!", "日本", "ends with ", "\n\n", "🙂"])
def test_characters_of_many_bytes_and_spaces_are_found(encoder: Encoder, stop: str) -> None:
    found = first_stop(encoder, f"some text {stop} and more", [stop])
    assert found == (len(f"some text {stop}".encode()), stop)


def test_a_long_text_without_the_string_has_none(encoder: Encoder) -> None:
    assert first_stop(encoder, "a < b > c </pythn> " * 30, ["</python>", "</answer>"]) is None


def test_a_stop_string_after_a_long_text_is_found(encoder: Encoder) -> None:
    text = "no > tag > here " * 40
    assert first_stop(encoder, text + "</answer>", ["</answer>"], special=False) == (len(text) + 9, "</answer>")
