from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ramet import Rollout, Task, user_prompt
from ramet.config.catalog import typed_options
from ramet.errors import ConfigError
from ramet.testing.doubles import written_rollout
from ramet.testing.reward import check_reward
from ramet_rewards.config import OverlongConfig
from ramet_rewards.overlong import make


def rollout(sampled: int, inserted: int = 0) -> Rollout:
    """One token per letter."""
    task = Task(id="t", prompt=user_prompt("?"))
    turns = ["a" * (sampled - 1), "b"] if inserted else ["a" * sampled]
    return written_rollout(task, turns, results=("r" * inserted,) if inserted else ())


def scores(*rollouts: Rollout, **options: Any) -> list[Any]:
    config = OverlongConfig(max_tokens=100, buffer_tokens=40, **options)
    return list(asyncio.run(make(config)(rollouts)))  # type: ignore[arg-type]


def test_the_punishment_begins_with_the_buffer_and_ends_at_the_limit() -> None:
    assert scores(*map(rollout, (1, 60, 70, 90, 100, 250))) == [0, 0, -0.25, -0.75, -1, -1]


def test_tool_results_count_unless_only_sampled_tokens_are_asked_for() -> None:
    long_result = rollout(30, inserted=50)
    assert scores(long_result) == [-0.5]
    assert scores(long_result, sampled_only=True) == [0]


def test_the_reward_keeps_the_contract() -> None:
    check_reward(make(OverlongConfig()))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_tokens": 0}, "max_tokens .* 0"),
        ({"buffer_tokens": 0}, "buffer_tokens .* 0"),
        ({"max_tokens": 10, "buffer_tokens": 11}, "buffer_tokens must be at most max_tokens=10, got 11"),
    ],
)
def test_an_impossible_buffer_is_refused(options: dict[str, int], problem: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=f"^{problem}$"):
        typed_options(OverlongConfig, options)
