"""Options, and what becomes of an outcome; no Inspect is needed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ramet import (
    AgentBudget,
    AgentContext,
    AgentStatus,
    ConfigError,
    InfraError,
    Rollout,
    StopReason,
    Task,
    user_prompt,
)
from ramet_inspect import worker
from ramet_inspect.agent import InspectAgent
from ramet_inspect.benchmark import SAMPLE, InspectBenchmark
from ramet_inspect.config import InspectBenchmarkConfig, InspectConfig

OPTIONS = {"python": sys.executable, "task": "sums.py@sums"}
TASK = Task(id="a", prompt=user_prompt("?"), metadata={SAMPLE: "a"})
CONTEXT = AgentContext(
    base_url="http://127.0.0.1/v1",
    key="k",
    model="policy",
    budget=AgentBudget(turns=1, tokens=1, tool_calls=1, seconds=1),
    folder=Path("unused"),
    seed=1,
)


def done(**scores: float | None) -> dict[str, Any]:
    return {"status": "done", "answer": "4", "scores": scores, "reasons": {}, "limit": None, "error": None}


def result_of(outcome: Mapping[str, Any], **options: Any) -> Any:
    return InspectAgent(InspectConfig(**OPTIONS, **options))._result(TASK, outcome)


def test_the_first_or_the_named_score_is_the_reward() -> None:
    outcome = done(includes=1.0, words=0.25)
    assert result_of(outcome).reward == 1.0
    named = result_of(outcome, scorer="words")
    assert (named.answer, named.reward, named.status) == ("4", 0.25, AgentStatus.DONE)
    assert named.info["inspect"]["scores"] == {"includes": 1.0, "words": 0.25}


@pytest.mark.parametrize(
    ("outcome", "options", "error", "message"),
    [
        (done(), {}, ConfigError, "needs a scorer"),
        (done(includes=1.0), {"scorer": "match"}, ConfigError, "no score 'match'; its scores: includes"),
        ({**done(f1=None), "reasons": {"f1": "grader_failed"}}, {}, InfraError, "'f1' has the reason grader_failed"),
        ({**done(f1=0.0), "reasons": {"f1": "scoring_failed"}}, {}, InfraError, "'f1' has the reason scoring_failed"),
        ({"status": "infra", "error": "Connection error."}, {}, InfraError, "Connection error."),
        ({"status": "config", "error": "docker is missing"}, {}, ConfigError, "docker is missing"),
    ],
)
def test_what_gives_no_reward_is_never_0(
    outcome: Mapping[str, Any], options: Mapping[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        result_of(outcome, **options)


def test_a_failed_sample_is_a_crash_of_the_agent_and_scores_0() -> None:
    result = result_of({**done(), "status": "failed", "error": "KeyError"})
    assert (result.status, result.reward, result.info["inspect"]["error"]) == (AgentStatus.FAILED, None, "KeyError")
    assert score_of({"inspect": dict(result.info["inspect"])}) == {"score": 0.0}


@pytest.mark.parametrize("reasons", [{}, {"includes": "no_response"}])
def test_a_score_that_is_not_a_number_is_a_crash_too(reasons: Mapping[str, str]) -> None:
    """The policy can bring it about by what it writes: it must not choose to be masked."""
    result = result_of({**done(includes=None, words=1.0), "reasons": reasons})
    assert (result.status, result.answer, result.reward) == (AgentStatus.FAILED, None, None)
    assert "score 'includes' is not a number" in result.info["inspect"]["error"]
    assert score_of({"inspect": dict(result.info["inspect"])}) == {"score": 0.0}


def score_of(*infos: Mapping[str, Any]) -> Mapping[str, float | None]:
    rollout = Rollout(id="0", task=TASK, segments=(), stop=StopReason.DONE, infos=infos)
    return asyncio.run(InspectBenchmark(InspectBenchmarkConfig(**OPTIONS)).score(rollout))


def test_the_metric_is_the_agents_score() -> None:
    assert score_of({}, {"inspect": {"score": 0.5}}) == {"score": 0.5}
    with pytest.raises(ConfigError, match="rollout_step=inspect"):
        score_of({})
    with pytest.raises(ConfigError, match="score 7; a metric is a number in"):
        score_of({"inspect": {"score": 7.0}})


@pytest.mark.parametrize(
    ("value", "numbers"),
    [
        ("C", {"s": 1.0}),
        ("P", {"s": 0.5}),
        ("I", {"s": 0.0}),
        ("N", {"s": 0.0}),
        ("yes", {"s": 1.0}),
        (True, {"s": 1.0}),
        ("0.25", {"s": 0.25}),
        (float("nan"), {"s": None}),  # Inspect's mark of a sample that was not scored
        ("a text", {"s": None}),
        ([1, 0], {"s": None}),
        ({"a": 1, "b": "I"}, {"s/a": 1.0, "s/b": 0.0}),
    ],
)
def test_scores_are_numbers_as_inspect_has_them_or_none(value: Any, numbers: Mapping[str, float | None]) -> None:
    assert dict(worker.numbers("s", value)) == numbers


def test_a_task_is_required() -> None:
    with pytest.raises(ConfigError, match=r"rollout_step\.params\.task is empty"):
        InspectAgent(InspectConfig())
    with pytest.raises(ConfigError, match=r"benchmarks\.inspect\.params\.task is empty"):
        InspectBenchmark(InspectBenchmarkConfig())


def test_options_that_run_programs_say_so() -> None:
    assert InspectConfig(**OPTIONS).runs_code() == OPTIONS
    assert InspectConfig(task="a.py@a").runs_code() == {"task": "a.py@a"}


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """This Python without any installed package."""
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return script


def test_an_interpreter_without_inspect_is_named(bare_python: Path) -> None:
    for python, message in (
        (str(bare_python), r"No module named 'inspect_ai'"),
        ("/no/such/python", r"'/no/such/python' cannot be started: No such file"),
        ("/bin/true", r"'/bin/true' did not list the samples"),
    ):
        options = {**OPTIONS, "python": python}
        with pytest.raises(ConfigError, match=f"benchmarks.inspect.params.*{message}"):
            list(InspectBenchmark(InspectBenchmarkConfig(**options)).load("test", None))
        with pytest.raises(ConfigError, match=f"rollout_step.params.*{message}"):
            asyncio.run(InspectAgent(InspectConfig(**options)).run(TASK, CONTEXT))


def test_a_task_of_another_benchmark_is_refused() -> None:
    with pytest.raises(ConfigError, match="'b' is not a sample of Inspect"):
        asyncio.run(InspectAgent(InspectConfig(**OPTIONS)).run(Task(id="b", prompt=user_prompt("?")), CONTEXT))
