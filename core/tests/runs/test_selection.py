from __future__ import annotations

from pathlib import Path

import pytest

from ramet.runs.selection import Selection, read_selection, selection_problem


@pytest.mark.parametrize(
    ("metric", "chooses"),
    [
        ("valid/gsm8k/accuracy", "benchmark:gsm8k/test"),
        ("valid/reward", "benchmark:gsm8k/test, benchmark:aime24/test"),
        ("valid/math/accuracy", None),  # its training split
        (None, None),
    ],
)
def test_choosing_a_checkpoint_on_a_test_split_is_warned_of(metric: str | None, chooses: str | None) -> None:
    data = ["valid.jsonl", "benchmark:gsm8k/test", "benchmark:aime24/test", "benchmark:math/train"]
    found = selection_problem(metric, data)
    assert (found is None) == (chooses is None)
    assert found is None or found.startswith(f"train.keep_best={metric}: chooses the checkpoint on {chooses}, which")


def test_a_choice_is_read_again_and_knows_its_tasks(tmp_path: Path) -> None:
    choice = Selection(step=3, metric="valid/gsm8k/accuracy", value=0.5, data=("benchmark:gsm8k/test",))
    choice.write(tmp_path)
    assert read_selection(tmp_path) == choice
    assert choice.chose_on("gsm8k", "test") and not choice.chose_on("gsm8k", "train")
    (tmp_path / "selection.json").write_text("[]")
    assert read_selection(tmp_path) is None
