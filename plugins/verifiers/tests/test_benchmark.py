"""Scores of rollouts that the environment has scored, and the options of the benchmark."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from ramet import ConfigError, Task, user_prompt
from ramet.testing.doubles import written_rollout
from ramet_verifiers.benchmark import VerifiersBenchmark
from ramet_verifiers.config import VerifiersBenchmarkConfig

METRICS = {"words": 7.0, "polite": 1.0, "ratio": None}
SCORED = {"ok": True, "reward": 0.5, "rewards": {"right": 0.5}, "metrics": METRICS}


def score(info: dict[str, Any] | None, **options: Any) -> dict[str, float | None]:
    benchmark = VerifiersBenchmark(VerifiersBenchmarkConfig(environment="sums", **options))
    rollout = written_rollout(Task(id="sums/test/0", prompt=user_prompt("?")), ["4"])
    infos = () if info is None else ({}, {"verifiers": info})
    return dict(asyncio.run(benchmark.score(dataclasses.replace(rollout, infos=infos))))


def test_the_metrics_are_the_reward_in_its_range_and_those_that_are_named() -> None:
    assert score(SCORED) == {"reward": 0.5}
    assert score(SCORED, reward_range=[-1.0, 1.0]) == {"reward": 0.75}
    assert score(SCORED, metrics=["polite", "right"]) == {"reward": 0.5, "polite": 1.0, "right": 0.5}
    assert score(SCORED, metrics=["ratio"]) == {"reward": 0.5, "ratio": None}


@pytest.mark.parametrize("info", [None, {"ok": False, "reward": 0, "rewards": {}, "metrics": {}}])
def test_a_program_that_failed_scores_0(info: dict[str, Any] | None) -> None:
    assert score(info, reward_range=[-1.0, 1.0], metrics=["polite"]) == {"reward": 0.0, "polite": 0.0}


def test_values_out_of_range_and_unknown_metrics_are_named() -> None:
    with pytest.raises(ConfigError, match=r"0\.5, outside of \[0, 0\.25\]: set reward_range"):
        score(SCORED, reward_range=[0.0, 0.25])
    with pytest.raises(ConfigError, match="words' has the value 7"):
        score(SCORED, metrics=["words"])
    with pytest.raises(ConfigError, match="'rude'; the environment has: words, polite, ratio, right"):
        score(SCORED, metrics=["rude"])


@pytest.mark.parametrize(
    "options",
    [{"reward_range": [1.0, 0.0]}, {"splits": {"train": 3}}, {"metrics": ["reward"]}, {"metrics": ["a", "a"]}],
)
def test_options_that_contradict_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}.*allowed"):
        VerifiersBenchmarkConfig(**options)


def test_options_that_run_code_are_declared() -> None:
    config = VerifiersBenchmarkConfig(
        python="/venv/bin/python", environment="sums", path=["/a", "/b"], splits={"train": {"taskset": {"n": 1}}}
    )
    assert config.runs_code() == {
        "python": "/venv/bin/python",
        "environment": "sums",
        "path": "/a, /b",
        "splits": '{"train": {"taskset": {"n": 1}}}',
    }
