"""`custom`: functions of the user's, in the form of the first documents and in verl's, run in real processes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ramet import ConfigError, InfraError, PluginError, Rollout, Score
from ramet.testing import check_reward, local_services
from ramet_rewards.config import CustomConfig
from ramet_rewards.custom import Custom

LIST_FORM = """
import helper_beside

def compute_score(data):
    scores = []
    for sample in data:
        format_score = 0.2 if "</answer>" in sample["output"] else 0.0
        scores.append(format_score + helper_beside.WEIGHT * (sample["extra_info"]["final_answer"] == sample["answer"]))
    return scores
"""
KEYWORD_FORM = """
def score_one(solution_str, ground_truth, extra_info=None, scale=1.0):
    right = float(ground_truth in solution_str)
    return {"score": scale * right, "right": right, "n_calls": len(extra_info["tool_calls"]), "why": "text"}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "helper_beside.py").write_text("WEIGHT = 0.8\n")
    return tmp_path / "my_reward.py"


def scores(file: Path, source: str, group: list[Rollout], **options: Any) -> list[Any]:
    file.write_text(source)

    async def main() -> list[Any]:
        reward = Custom(CustomConfig(path=str(file), **options))
        try:
            with local_services() as services:
                await reward.start(services)
            return list(await reward(group))
        finally:
            await reward.aclose()

    return asyncio.run(main())


def values(found: list[Any]) -> list[Any]:
    return [score.value if isinstance(score, Score) else score for score in found]


@pytest.fixture
def group(write: Any) -> list[Rollout]:
    return [write.answer(answer, "42", id=str(i)) for i, answer in enumerate(["42", "7", None])]


def test_a_function_of_the_whole_group(file: Path, group: list[Rollout]) -> None:
    assert values(scores(file, LIST_FORM, group)) == pytest.approx([1.0, 0.2, 0.2])


def test_a_function_of_one_rollout_by_keyword_with_parts_and_arguments(file: Path, group: list[Rollout]) -> None:
    found = scores(file, KEYWORD_FORM, group, function="score_one", arguments={"scale": 3.0}, workers=2)
    assert values(found) == [3.0, 0.0, 0.0]
    assert found[0].parts == {"right": 1.0, "n_calls": 0.0}


@pytest.mark.parametrize(
    "source",
    [
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None): return len(ground_truth)",
        "def compute_score(**kwargs): return len(kwargs['ground_truth'])",
        "def compute_score(data, weight=1): return [len(sample['answer']) for sample in data]",
        "import numpy as np\ndef compute_score(data): return np.array([len(s['answer']) for s in data])",
        "import signal\ndef compute_score(data):\n    signal.alarm(5)\n    signal.alarm(0)\n    return [2] * len(data)",
        "def compute_score(data):\n    print('talk')\n    return [{'score': 2.0, 'part': True} for _ in data]",
    ],
    ids=["verl", "kwargs", "list", "numpy", "signal", "dicts"],
)
def test_all_forms_give_the_same(file: Path, group: list[Rollout], source: str) -> None:
    assert values(scores(file, source, group)) == [2.0, 2.0, 2.0]


def test_several_gold_answers_are_a_list_and_a_sample_is_json(write: Any, file: Path) -> None:
    source = "import json\ndef compute_score(data):\n    raise ValueError(json.dumps(data[0], sort_keys=True))"
    with pytest.raises(InfraError) as caught:
        scores(file, source, [write.answer("1", "1", "one")])
    said = str(caught.value)
    assert said.startswith("my_reward.py: compute_score: ValueError: {") and said.endswith(" (line 3)")
    sample = json.loads(said.removeprefix("my_reward.py: compute_score: ValueError: ").removesuffix(" (line 3)"))
    assert sorted(sample) == ["answer", "data_source", "extra_info", "output"]
    assert (sample["answer"], sample["output"]) == (["1", "one"], "<answer>1</answer>")
    assert sorted(sample["extra_info"]) == [
        "final_answer", "id", "n_tokens", "question", "sampled", "stop", "tool_calls",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import nowhere_to_be_found",
         "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to_be_found' (line 1)"),
        ("raise SystemExit(3)", "cannot be loaded: SystemExit: 3 (line 1)"),
        ("def other(data): pass", "has no function 'compute_score'; it has: other"),
        ("def compute_score(): pass", "compute_score() has neither form; allowed: one parameter, a list of dicts, or "
         "keyword parameters of data_source, solution_str, ground_truth, extra_info"),
        ("def compute_score(a, b): pass", "compute_score(a, b) has neither form"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_named_before_the_first_score(file: Path, source: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scores(file, source, [])
    assert str(caught.value).startswith("rewards.custom: ") and problem in str(caught.value)


def test_a_file_that_is_not_there_or_no_python_is_refused_when_it_is_built(file: Path) -> None:
    for path in ("", str(file)):
        with pytest.raises(ConfigError) as caught:
            Custom(CustomConfig(path=path))
        assert str(caught.value) == (f"rewards.custom.params.path is {path!r}; allowed: a Python file that is there")
    file.write_text("def f(:")
    with pytest.raises(ConfigError, match=r"params\.path: .*my_reward\.py is no Python: "):
        Custom(CustomConfig(path=str(file)))
    with pytest.raises(ValueError, match="workers must be over 0, got 0; timeout_s must be over 0, got 0"):
        CustomConfig(workers=0, timeout_s=0)


def test_what_one_rollout_raises_leaves_the_others_judged(file: Path, group: list[Rollout], caplog: Any) -> None:
    source = "def compute_score(solution_str, ground_truth):\n    return 1 / ('42' in solution_str)"
    assert values(scores(file, source, group)) == [1.0, None, None]
    assert [record.getMessage() for record in caplog.records] == [
        "custom: 2 of 3 rollouts are not judged: my_reward.py: compute_score: ZeroDivisionError: division by zero "
        "(line 2)"
    ]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import time\ndef compute_score(data):\n    time.sleep(60)", "no result within 0.5 s"),
        ("import os\ndef compute_score(data): os.abort()", "the process ended"),
        ("import os\ndef compute_score(data): os._exit(0)", "the process ended"),
    ],
)
def test_a_function_that_hangs_or_ends_its_process_judges_nothing_and_the_next_group_is_judged(
    file: Path, group: list[Rollout], source: str, problem: str
) -> None:
    file.write_text(source)

    async def main() -> list[Any]:
        reward = Custom(CustomConfig(path=str(file), timeout_s=0.5))
        with pytest.raises(InfraError) as caught:
            await reward(group)
        assert str(caught.value) == f"my_reward.py: compute_score: {problem}"
        file.write_text("def compute_score(data): return [1] * len(data)")
        found = list(await reward(group))
        await reward.aclose()
        return values(found)

    assert asyncio.run(main()) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("def compute_score(data): return [1]", "returned 1 for 3 rollouts; allowed: a list as long"),
        ("def compute_score(data): return 1", "returned float for 3 rollouts; allowed: a list as long"),
        ("def compute_score(data): return [{'value': 1, 'x': 2}] * 3",
         "returned a dict without 'score'; found: value, x"),
    ],
)  # fmt: skip
def test_what_is_no_score_stops_the_run(file: Path, group: list[Rollout], source: str, problem: str) -> None:
    with pytest.raises(PluginError) as caught:
        scores(file, source, group)
    assert str(caught.value) == f"my_reward.py: compute_score {problem}"


def test_none_is_not_judged_and_nan_reaches_the_core_as_it_is_called(file: Path, group: list[Rollout]) -> None:
    assert values(scores(file, "def compute_score(data): return [None, float('nan'), 1]", group)) == [None, "nan", 1.0]


def test_the_reward_keeps_the_contract(file: Path) -> None:
    file.write_text(LIST_FORM)
    check_reward(Custom(CustomConfig(path=str(file))))
