from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ramet import ConfigError
from ramet.testing.benchmark import check_benchmark
from ramet_benchmarks.arithmetic import OPERATORS, Arithmetic
from ramet_benchmarks.config import ArithmeticConfig


def _ids(split: str, limit: int | None = None, **options: Any) -> list[str]:
    return [task.id for task in Arithmetic(ArithmeticConfig(**options)).load(split, limit)]


def _operands(id: str, sign: str) -> frozenset[str]:
    return frozenset(id.removeprefix("arithmetic/").split(sign))


def test_the_benchmark_keeps_the_contract() -> None:
    check_benchmark(Arithmetic(ArithmeticConfig(n_train=300)))


def test_train_and_test_share_no_problem_not_even_with_swapped_operands() -> None:
    train, test = _ids("train"), _ids("test")
    assert len(test) == 200 and len(train) + len(test) == 90 * 91 // 2
    assert {_operands(id, "*") for id in train}.isdisjoint(_operands(id, "*") for id in test)


def test_both_orders_of_operands_occur() -> None:
    pairs = [task.removeprefix("arithmetic/").split("*") for task in _ids("train")]
    assert 0.4 < sum(int(a) < int(b) for a, b in pairs) / len(pairs) < 0.6


def test_the_test_split_does_not_depend_on_the_size_of_the_train_split() -> None:
    assert _ids("test") == _ids("test", n_train=5)
    assert _ids("train", n_train=5) == _ids("train", 5)


def test_another_seed_gives_another_split() -> None:
    assert set(_ids("test")) != set(_ids("test", seed=2))


def test_answers_are_right_for_all_operators() -> None:
    signs = list(OPERATORS)
    tasks = list(Arithmetic(ArithmeticConfig(operators=signs, min_operand=1, max_operand=30)).load("train", 500))
    for task in tasks:
        assert task.answer == (str(eval(task.id.removeprefix("arithmetic/"))),)
    assert {sign for sign in signs if any(sign in task.id for task in tasks)} == set(signs)


def test_prompts_are_short_and_the_users_to_choose() -> None:
    plain = next(iter(Arithmetic(ArithmeticConfig()).load("test", 1)))
    assert plain.question == f"{plain.id.removeprefix('arithmetic/')}=?"
    wordy = next(iter(Arithmetic(ArithmeticConfig(prompt="What is {problem}?")).load("test", 1)))
    assert wordy.question.startswith("What is ") and wordy.id == plain.id


def test_huge_operands_are_drawn_without_listing_them() -> None:
    assert len(set(_ids("test", max_operand=10**9, n_test=50))) == 50


@pytest.mark.parametrize(("answer", "score"), [("{gold}", 1.0), (r"\boxed{{{gold}}}", 1.0), ("{gold}.0", 0.0)])
def test_only_the_exact_whole_number_scores(accuracy: Callable[..., float], answer: str, score: float) -> None:
    benchmark = Arithmetic(ArithmeticConfig())
    task = next(iter(benchmark.load("test", 1)))
    assert accuracy(benchmark, task, answer.format(gold=task.answer[0])) == score
    assert accuracy(benchmark, task, str(int(task.answer[0]) + 1)) == accuracy(benchmark, task, None) == 0.0


def test_all_wrong_options_are_reported_together() -> None:
    with pytest.raises(ConfigError) as caught:
        Arithmetic(ArithmeticConfig(operators=["*", "^"], min_operand=9, max_operand=3, n_test=0, prompt="?"))
    for part in ("operators is ['*', '^']", "min_operand is 9 and max_operand 3", "n_test is 0", "prompt is '?'"):
        assert f"benchmarks.arithmetic.params.{part}" in str(caught.value)
    with pytest.raises(ConfigError, match="1 <= min_operand"):
        Arithmetic(ArithmeticConfig(operators=["%"], min_operand=0))
