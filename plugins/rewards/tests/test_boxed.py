from __future__ import annotations

import pytest

from ramet_rewards.boxed import final, last_boxed


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
