"""Rewards and data sources: a reward that could judge no task is refused, and the dry run shows who judges what."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.config.schema import RewardConfig
from ramet.errors import ConfigErrors
from ramet.models.tiny import make_tiny_model
from ramet.train.data_sources import source_table
from ramet.train.dry_run import plan
from ramet.types import Task, user_prompt

SOURCES = ["DR_grpo_mix"] * 3 + ["hotpotqa"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", hidden=32, layers=1, heads=2, intermediate=64)


@pytest.fixture
def given(model: Path, tmp_path: Path) -> Callable[..., list[str]]:
    def overrides(*more: str) -> list[str]:
        for name, sources in (("train", SOURCES), ("valid", ["essays", "hotpotqa"])):
            rows = [{"prompt": f"{name} {i}?", "answer": "1", "data_source": s} for i, s in enumerate(sources)]
            (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return [
            f"model.path={model}", "model.device=cpu", f"run.root={tmp_path}", f"data.train={tmp_path}/train.jsonl",
            "data.max_prompt_tokens=32", "rollout_step.system_prompt=never", "rollout.max_response_tokens=8",
            "engine=torch", "tools=[]", "train.tasks_per_step=1", "train.minibatches=1", "algorithm=grpo",
            "rollout.max_concurrent=8", *more,
        ]  # fmt: skip

    return overrides


def problems(overrides: list[str]) -> list[str]:
    with pytest.raises(ConfigErrors) as caught:
        plan(compose(overrides, job="train"))
    return caught.value.problems


def test_a_reward_whose_source_no_task_has_is_refused_with_the_sources_there_are(given):
    assert problems(given("rewards=[math,format]", "rewards.math.sources=[math]")) == [
        "rewards.math.sources=[math]: no task of data.train has the data source 'math'. There are: 'DR_grpo_mix' "
        "(3 tasks), 'hotpotqa' (1 task)"
    ]


def test_answers_that_no_reward_can_judge_and_costs_of_tools_that_there_are_not_are_told_at_once(given, tmp_path: Path):
    chosen = given(
        "rewards=[math,tool_cost]", "+rewards.tool_cost.params.costs={serch: 1}", f"data.valid={tmp_path}/v.jsonl"
    )
    for name in ("train", "v"):
        rows = [{"prompt": "?", "answer": answer} for answer in ("1", "\\boxed{}", "\\boxed{2}")]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wrong = "row 2: rewards.math: no gold answer, or one with nothing in its box; got ['\\\\boxed{}']"
    assert problems(chosen) == [
        f"{tmp_path}/train.jsonl, {wrong}",
        f"{tmp_path}/v.jsonl, {wrong}",
        "rewards.tool_cost.params.costs names 'serch'; allowed: tools, that is none",
    ]


def test_the_nearest_source_is_named_whatever_its_case_and_validation_counts(given, tmp_path: Path):
    valid = f"data.valid={tmp_path}/valid.jsonl"
    rewards = ["rewards=[math,format]", "rewards.math.sources=[dr_grpo_mix,essays]"]
    [problem] = problems(given(valid, *rewards))
    assert problem.startswith("rewards.math.sources=[dr_grpo_mix, essays]: no task of data.train or data.valid ")
    assert problem.endswith(
        "'DR_grpo_mix'? There are: 'DR_grpo_mix' (3 tasks), 'hotpotqa' (2 tasks), 'essays' (1 task)"
    )


def test_sources_without_any_reward_are_refused_with_their_counts(given):
    assert problems(given("rewards=[math]", "rewards.math.sources=hotpotqa")) == [
        "rewards: none applies to data source 'DR_grpo_mix' (3 tasks); configured: math; set rewards.NAME.sources, or "
        "null for all"
    ]


def test_a_source_that_a_limit_may_have_left_out_is_a_warning(given, caplog: pytest.LogCaptureFixture):
    plan(compose(given("rewards=[math,format]", "rewards.math.sources=hotpotqa", "data.limits.train=2"), job="train"))
    [message] = [record.getMessage() for record in caplog.records if "sources" in record.getMessage()]
    assert message.startswith("rewards.math.sources=[hotpotqa]: no task of data.train ")
    assert message.endswith("'DR_grpo_mix' (2 tasks) (data.limits.train=2: tasks that were not read may have it)")


def test_the_plan_shows_tasks_by_source_and_reward(given, tmp_path: Path):
    valid = f"data.valid=[{tmp_path}/valid.jsonl,benchmark:arithmetic/test]"
    chosen = [valid, "data.limits.valid=3", "rewards=[math,format]", "rewards.math.sources=[DR_grpo_mix]"]
    facts = plan(compose(given(*chosen, "rewards.format.sources=[hotpotqa,essays]"), job="train")).facts
    assert facts["sources"].splitlines() == [
        "data source  train  valid  math  format",
        "DR_grpo_mix      3      0     3       -",
        "hotpotqa         1      1     -       2",
        "essays           0      1     -       1",
        "arithmetic       0      1     -       -  no reward judges it, only its benchmark",
    ]


def test_names_of_sources_steer_no_terminal():
    tasks = [Task(id="a", prompt=user_prompt("q"), data_source="a\x1b[2J\nb")]
    assert source_table({"f": RewardConfig()}, tasks, []) == [
        "data source  train  f",
        "a\\x1b[2J b       1  1",
    ]
