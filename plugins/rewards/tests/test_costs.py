"""What a rollout costs: `length`, `tool_cost`, `repetition`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from ramet import CallStatus, Rollout, Task, ToolRecord, user_prompt
from ramet.config.catalog import typed_options
from ramet.errors import ConfigError
from ramet.testing.doubles import written_rollout
from ramet.testing.reward import check_reward
from ramet_rewards.config import LengthConfig, RepetitionConfig, ToolCostConfig
from ramet_rewards.length import make as length
from ramet_rewards.repetition import make as repetition
from ramet_rewards.repetition import repeated_share
from ramet_rewards.tool_cost import ToolCost as tool_cost


def written(*turns: str, results: tuple[str, ...] = ()) -> Rollout:
    """One token per letter."""
    return written_rollout(Task(id="t", prompt=user_prompt("?")), turns, results=results)


def called(*names: str) -> Rollout:
    calls = [
        ToolRecord(turn=i, name=name, arguments={}, status=status, text="", wait_s=0, run_s=0, attempts=1)
        for i, (name, status) in enumerate(zip(names, [CallStatus.OK, CallStatus.ERROR] * len(names), strict=False))
    ]
    return replace(written("a"), tool_calls=tuple(calls))


def values(reward: Any, *rollouts: Rollout) -> list[float]:
    return [float(getattr(score, "value", score)) for score in asyncio.run(reward(list(rollouts)))]


def test_every_token_after_the_free_ones_costs_the_same() -> None:
    rollouts = [written("a" * n) for n in (1, 20, 40, 100, 500)]
    assert values(length(LengthConfig(max_tokens=100, free_tokens=20)), *rollouts) == [0, 0, -0.25, -1, -1]
    with_result = written("a" * 9, "b", results=("r" * 40,))
    assert values(length(LengthConfig(max_tokens=100)), with_result) == [-0.1]
    assert values(length(LengthConfig(max_tokens=100, sampled_only=False)), with_result) == [-0.5]


def test_every_call_costs_up_to_a_limit() -> None:
    rollouts = [called(), called("python"), called("python", "search", "search")]
    assert values(tool_cost(ToolCostConfig()), *rollouts) == pytest.approx([0, -0.05, -0.15])
    priced = ToolCostConfig(cost=0.1, costs={"search": 0.3}, free_calls=1, most=0.5)
    assert values(tool_cost(priced), *rollouts) == pytest.approx([0, 0, -0.5])
    [score] = asyncio.run(tool_cost(ToolCostConfig())([rollouts[2]]))
    assert score.parts == {"calls": 3.0}  # type: ignore[union-attr]


def test_costs_are_of_tools_that_there_are() -> None:
    priced = tool_cost(ToolCostConfig(costs={"serch": 0.3, "python": 0.1, "bing": 1.0}))
    assert priced.check_tools(["python", "search"]) == [
        "costs names 'serch', 'bing'; allowed: tools, that is python, search"
    ]
    assert priced.check_tools([]) == ["costs names 'serch', 'python', 'bing'; allowed: tools, that is none"]
    assert priced.check_tools(["python", "serch", "bing"]) == tool_cost(ToolCostConfig()).check_tools([]) == []


def test_repeated_ngrams_cost_their_share() -> None:
    assert repeated_share(written("abcdefgh"), 3) == 0.0
    assert repeated_share(written("abcabc"), 3) == 1 - 3 / 4  # abc bca cab abc
    assert repeated_share(written("aaaaa"), 3) == 1 - 1 / 3
    assert repeated_share(written("ab"), 3) == 0.0
    assert repeated_share(written("abc", "abc", results=("abcabc",)), 3) == 0.5  # no result, no seam, both turns
    reward = repetition(RepetitionConfig(ngram=3))
    assert values(reward, written("abcdef"), written("abcabc")) == [0.0, -0.25]
    lenient = repetition(RepetitionConfig(ngram=3, free_share=0.2))
    assert values(lenient, written("abcdef"), written("abcabc")) == pytest.approx([0.0, -0.0625])


def test_a_long_rollout_is_counted_quickly() -> None:
    began = time.process_time()
    assert repeated_share(written("ab" * 16_000), 20) > 0.99
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    ("options", "given", "problem"),
    [
        (LengthConfig, {"max_tokens": 5, "free_tokens": 5}, "free_tokens must be under max_tokens=5, got 5"),
        (LengthConfig, {"free_tokens": -1}, "free_tokens .* -1"),
        (ToolCostConfig, {"cost": -1, "free_calls": -1, "most": -1}, "cost .* -1.0; free_calls .* -1; most .* -1.0"),
        (ToolCostConfig, {"costs": {"a": -2}}, "costs.a must be at least 0, got -2.0"),
        (RepetitionConfig, {"ngram": 0}, "ngram .* 0"),
        (RepetitionConfig, {"free_share": 1}, "free_share .* 1.0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: type[Any], given: dict[str, Any], problem: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=f"^{problem}$"):
        typed_options(options, given)


@pytest.mark.parametrize(
    "reward", [length(LengthConfig()), tool_cost(ToolCostConfig()), repetition(RepetitionConfig(ngram=2))]
)
def test_the_rewards_keep_the_contract(reward: Any) -> None:
    check_reward(reward)
