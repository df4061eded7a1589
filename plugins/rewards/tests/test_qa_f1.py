from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ramet.testing.reward import check_reward
from ramet_rewards.qa_f1 import f1, make, score

GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "golden" / "values" / "rewards.jsonl"


@pytest.mark.parametrize(
    ("answer", "golds", "expected"),
    [
        ("Paris", ["paris"], 1.0),
        ("The Eiffel Tower!", ["eiffel tower"], 1.0),
        ("the 5 apples", ["5"], 2 / 3),
        ("Johann Goethe", ["Goethe", "Johann Wolfgang von Goethe"], 2 / 3),
        ("a a b", ["a b b"], 2 / 3),  # the articles go: b against b b
        ("yes it is", ["yes"], 0.0),
        ("yes", ["no"], 0.0),
        ("", ["x"], 0.0),
        ("x", [], 0.0),
    ],
)
def test_f1_counts_shared_tokens(answer: str, golds: list[str], expected: float) -> None:
    assert f1(answer, golds) == pytest.approx(expected)


def test_f1_is_that_of_the_golden_rows() -> None:
    rows = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["function"] == "deep_research.get_f1_score"]
    assert rows
    for row in rows:
        answer, golds = _arguments(row["input"])
        expected = row["output"]["f1"] if isinstance(row["output"], dict) else row["output"]
        assert f1(answer, golds) == pytest.approx(expected, abs=1e-6), row


def _arguments(values: dict[str, Any]) -> tuple[str, list[str]]:
    answer = next(value for key, value in values.items() if "pred" in key)
    golds = next(value for key, value in values.items() if "truth" in key)
    return answer, [golds] if isinstance(golds, str) else golds


def test_the_box_of_an_answer_is_opened_and_no_answer_scores_zero(write: Any) -> None:
    assert score(write.answer(r"It is \boxed{Paris}.", "Paris")) == 1.0
    assert score(write.answer(None, "Paris")) == 0.0


def test_the_reward_keeps_the_contract_and_the_order(write: Any) -> None:
    check_reward(make())
    assert asyncio.run(make()([write.answer("no", "x"), write.answer("x", "x")])) == [0.0, 1.0]
