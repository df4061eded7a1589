from __future__ import annotations

import pytest

from ramet.policy.progress import PassCounter


def test_micro_batches_are_counted_while_they_are_computed() -> None:
    counter = PassCounter()
    assert [str(counter.now) for _ in counter.over("old log-probs", "abc")] == [
        f"old log-probs {number}/3" for number in (1, 2, 3)
    ]
    assert counter.now is None


def test_an_optimiser_step_is_one_of_several() -> None:
    counter = PassCounter()
    assert [str(counter.now) for _ in counter.over("update", "ab", earlier=1, passes=4)] == ["update 3/8", "update 4/8"]


def test_a_pass_that_fails_is_over() -> None:
    counter = PassCounter()
    with pytest.raises(RuntimeError):
        fail(counter)
    assert counter.now is None


def fail(counter: PassCounter) -> None:
    for _ in counter.over("update", "ab"):
        raise RuntimeError
