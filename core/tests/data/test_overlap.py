"""Questions of benchmarks in training data."""

from __future__ import annotations

import pytest

from ramet.data.overlap import overlaps
from ramet.types import Task, user_prompt

LONG = "How many minutes does the walk take her, including the minutes that she spends in the shop?"


def tasks(*questions: str, name: str = "train") -> list[Task]:
    return [Task(id=f"{name}/{i}", prompt=user_prompt(question)) for i, question in enumerate(questions)]


@pytest.mark.parametrize(
    ("question", "training", "shared"),
    [
        ("Who wrote Faust?", "who wrote “faust”", 1.0),
        ("中国的首都在哪？", "中国的首都在哪", 1.0),
        (LONG, LONG.upper(), 1.0),
        (LONG, f"Every morning Aya walks. {LONG} Give a number.", 1.0),
        (LONG, LONG.replace("the shop", "a cafe"), 0.8),
    ],
)
def test_the_same_and_most_of_the_same_words_are_found(question: str, training: str, shared: float) -> None:
    (found,) = overlaps(tasks(question, name="bench"), tasks("Something else", training))
    assert (found.task, found.training, found.question) == ("bench/0", "train/1", question)
    assert found.shared == pytest.approx(shared)


@pytest.mark.parametrize(
    ("question", "training"),
    [
        ("Who wrote Faust?", "Who wrote Hamlet?"),
        ("中国的首都在哪？", "日本的首都在哪？"),
        (LONG, "How many minutes does the walk take him?"),
        ("", ""),
    ],
)
def test_other_questions_are_not(question: str, training: str) -> None:
    assert overlaps(tasks(question, name="bench"), tasks(training)) == []


def test_each_task_comes_once_with_the_nearest_and_in_the_order_of_the_benchmark() -> None:
    near = LONG.replace("the shop", "a cafe")
    found = overlaps(tasks("Second?", LONG, "Third?", name="bench"), tasks(near, LONG, "third", "second"))
    assert [(one.task, one.training, one.shared) for one in found] == [
        ("bench/0", "train/3", 1.0), ("bench/1", "train/1", 1.0), ("bench/2", "train/2", 1.0),
    ]  # fmt: skip
