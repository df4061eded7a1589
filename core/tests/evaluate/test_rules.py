"""What a benchmark says of its own protocol takes effect, and the configuration may say otherwise."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from ramet.config.schema import BenchmarkConfig, EvaluateConfig
from ramet.errors import PluginError
from ramet.evaluate.rules import BenchmarkRules, rule_problems, rules_of, split_problem, warn_of_missing_tools
from ramet.plugins.registry import Entry
from ramet.testing import check_benchmark
from ramet.types import BenchmarkInfo, Message, Rollout, Task, user_prompt

INFO = BenchmarkInfo(
    description="questions",
    splits=("test", "sample"),
    metrics=("accuracy",),
    source="nowhere",
    licence="MIT",
    tools=("python", "search"),
    limits={"python": 5, "search": 10},
    sampling={"temperature": 0.7, "repetition_penalty": 1.1},
    prompt="Answer: {question}",
    system_prompt="Be brief.",
)
TASK = Task(id="a", prompt=(Message(role="system", content="?"), *user_prompt("Why?")), answer=("so",))


def test_the_benchmarks_own_protocol_holds() -> None:
    rules = rules_of(INFO, BenchmarkConfig(), EvaluateConfig(), ["python", "search", "other"])
    plan, task = rules.plan(3), rules.applied(TASK)
    assert (plan.group_size, plan.temperature, plan.top_p, plan.repetition_penalty) == (3, 0.7, 0.95, 1.1)
    assert (plan.tool_calls, plan.max_tool_calls) == ({"python": 5, "search": 10}, 15)
    assert task.tools == ("python", "search")
    assert [message.content for message in task.prompt] == ["Be brief.", "Answer: Why?"]


def test_evaluate_overrides_the_benchmark_and_benchmarks_name_overrides_both() -> None:
    evaluate = EvaluateConfig(sampling={"temperature": 1.0, "top_k": 20})
    chosen = BenchmarkConfig(
        tools=["python"],
        limits={"python": 2, "max_tool_calls": 4},
        sampling={"top_k": 5, "min_p": 0.1},
        prompt="{question}!",
    )
    rules = rules_of(INFO, chosen, evaluate, ["python", "search"])
    plan = rules.plan(1)
    assert (plan.temperature, plan.top_k, plan.min_p, plan.repetition_penalty) == (1.0, 5, 0.1, 1.1)
    assert (plan.tool_calls, plan.max_tool_calls) == ({"python": 2}, 4)
    assert rules.applied(TASK).prompt[1].content == "Why?!"
    assert rules.applied(replace(TASK, tools=())).tools == ()  # what a task says of itself holds


def test_without_any_word_everything_is_as_configured() -> None:
    info = replace(INFO, tools=(), limits={}, sampling={}, prompt=None, system_prompt=None)
    rules = rules_of(info, BenchmarkConfig(), EvaluateConfig(), ["python"])
    assert rules == BenchmarkRules()
    assert rules.applied(TASK) == TASK
    assert (rules.plan(1).temperature, rules.plan(1).top_p, rules.plan(1).max_tool_calls) == (0.6, 0.95, None)


def test_every_mistake_is_told_with_its_key() -> None:
    chosen = BenchmarkConfig(
        split="tset",
        tools=["serach"],
        limits={"serach": 1, "python": -1},
        prompt="Answer!",
    )
    assert list(rule_problems("own", INFO, chosen, ["python", "search"])) == [
        "benchmarks.own.tools: 'serach' is not configured; configured: python, search (see tools=[NAME])",
        "benchmarks.own.limits.serach: no tool of this name; allowed: max_tool_calls, python, search",
        "benchmarks.own.limits.python=-1: must be at least 0",
        "benchmarks.own.prompt='Answer!': must hold {question}, where the question goes",
    ]
    assert split_problem("own", INFO, chosen) == "benchmarks.own.split=tset: no such split; allowed: test, sample"
    assert split_problem("own", INFO, BenchmarkConfig(split="sample")) is None


def test_tools_that_are_not_configured_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_of_missing_tools("own", INFO, BenchmarkConfig(), ["python"])
        warn_of_missing_tools("own", INFO, BenchmarkConfig(tools=[]), [])  # meant
    assert caplog.messages == [
        "benchmarks.own: the protocol of its plugin has the tools python, search, of which search is not configured: "
        "numbers do not compare with those published for that protocol. Add tools=[python,search], or set "
        "benchmarks.own.tools=[python] if only what is configured is meant"
    ]
    rules = rules_of(INFO, BenchmarkConfig(), EvaluateConfig(), ["python"])
    assert (rules.tools, rules.limits, rules.max_tool_calls) == (("python",), {"python": 5}, 5)


def test_a_limit_of_a_tool_that_there_is_not_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Of `files` the user writes it."""
    info = replace(INFO, tools=(), limits={"pyhton": 5, "max_tool_calls": 9})
    with caplog.at_level(logging.WARNING):
        warn_of_missing_tools("own", info, BenchmarkConfig(), ["python"])
        warn_of_missing_tools("own", info, BenchmarkConfig(limits={}), ["python"])
    assert caplog.messages == [
        "benchmarks.own: it limits the calls of pyhton, which this run has no tool for: configured are python"
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metrics": ()}, "info.metrics is (): give a tuple of one or more texts"),
        ({"metrics": "accuracy"}, "info.metrics is 'accuracy': give a tuple of one or more texts"),
        ({"tools": "python"}, "info.tools is 'python': give a tuple of texts"),
        ({"limits": {"pyhton": 5}}, "info.limits names 'pyhton', which info.tools does not; allowed: max_tool_calls, "),
        ({"limits": {"python": -1}}, "info.limits['python'] is -1: must be a whole number, at least 0"),
        ({"limits": {"max_tool_calls": 2.5}}, "info.limits['max_tool_calls'] is 2.5: must be a whole "),
        ({"limits": ["python"]}, "info.limits and info.sampling are mappings of names to numbers"),
        ({"sampling": {"temprature": 1.0}}, "info.sampling['temprature'] is 1.0: no such key; allowed: temperature"),
        ({"sampling": {"top_p": 2}}, "info.sampling['top_p'] is 2: must be "),
        ({"sampling": {"top_k": float("inf")}}, "info.sampling['top_k'] is inf: must be a finite number"),
        ({"prompt": "Answer!"}, "info.prompt is 'Answer!': must contain {question}"),
    ],
)
def test_what_a_benchmark_says_wrongly_of_itself_is_named_with_its_plugin(changes: dict[str, Any], said: str) -> None:
    class Own:
        info = replace(INFO, **changes)

        def load(self, split: str, limit: int | None) -> list[Task]:
            return [TASK]

        async def score(self, rollout: Rollout) -> dict[str, float]:
            return {"accuracy": 0.0}

    entry: Entry[object] = Entry(
        kind="benchmark", name="own", factory=Own, config=None, plugin="mine", distribution="mine"
    )
    with pytest.raises(PluginError) as caught:
        entry.build()
    start = "plugin 'mine' (mine): the benchmark 'own' does not keep the contract: "
    assert str(caught.value).startswith(start + said)
    with pytest.raises(AssertionError, match=r"^.*info\.(metrics|tools|limits|sampling|prompt)"):
        check_benchmark(Own())
