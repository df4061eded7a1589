from __future__ import annotations

import time

import pytest

from ramet_rewards.boxed import final, last_boxed, words_of


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{5}", "5"),
        (r"first \boxed{4}, no: \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed {5}", "5"),
        (r"\fbox{5}", "5"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\{1, 2)}", r"\{1, 2)"),
        (r"\boxed{}", ""),
        (r"\boxed{5} and \boxed{6", "5"),
        (r"{ \boxed{5} }", "5"),
        (r"\\boxed{5}", "5"),
        (r"\boxed{5", None),
        (r"\boxed 5", None),
        ("no box", None),
        ("", None),
    ],
)
def test_the_last_balanced_box_counts(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


def test_the_final_answer_is_the_box_or_everything() -> None:
    assert final(r" so \boxed{ 7 } ") == "7"
    assert final(" 7 ") == "7"


def test_wrappers_of_words_are_opened_and_a_megabyte_of_them_is_read_at_once() -> None:
    assert words_of(r"\textbf{\text{Paris}}, \mathrm{France}") == "Paris, France"
    assert words_of(r"\textcolor{red}{Paris}") == r"\textcolor{red}{Paris}"
    began = time.process_time()
    for text in ("\\text{" * 200_000, "\\text " * 200_000, "\\text{a}" * 150_000):
        words_of(text)
    assert time.process_time() - began < 2.0


def test_thousands_of_open_boxes_are_read_in_one_pass() -> None:
    text = "\\boxed{" * 4000
    counted = CountedText(text)
    assert last_boxed(counted) is None
    assert counted.read <= 3 * len(text)


class CountedText(str):
    """Counts the characters that an iteration over it reads; slices and searches of a plain `str` are not counted."""

    read = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        for char in super().__iter__():
            self.read += 1
            yield char

    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        found = super().__getitem__(key)
        self.read += len(found)
        return found
