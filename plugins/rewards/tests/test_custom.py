"""`custom`: functions of the user's, in the form of the first documents and in verl's, run in real processes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ramet import ConfigError, InfraError, PluginError, Rollout, Score
from ramet.testing import check_reward, local_services
from ramet.types.option import option_problems
from ramet_rewards.config import CustomConfig, LlmJudgeConfig
from ramet_rewards.custom import Custom, FunctionRaised

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
        pytest.param(
            "import numpy as np\ndef compute_score(data): return np.array([len(s['answer']) for s in data])",
            marks=pytest.mark.skipif(find_spec("numpy") is None, reason="ramet[train] is not installed"),
        ),
        "import signal\ndef compute_score(data):\n    signal.alarm(5)\n    signal.alarm(0)\n    return [2] * len(data)",
        "def compute_score(data):\n    print('talk')\n    return [{'score': 2.0, 'part': True} for _ in data]",
        "async def compute_score(data): return [2] * len(data)",
        "import asyncio\nasync def compute_score(solution_str, **_):\n    await asyncio.sleep(0)\n    return 2",
        "class Two:\n    def __call__(self, data): return [2] * len(data)\ncompute_score = Two()",
    ],
    ids=["verl", "kwargs", "list", "numpy", "signal", "dicts", "async", "async one", "object"],
)
def test_all_forms_give_the_same(file: Path, group: list[Rollout], source: str) -> None:
    assert values(scores(file, source, group)) == [2.0, 2.0, 2.0]


def test_several_gold_answers_are_a_list_and_a_sample_is_json(write: Any, file: Path) -> None:
    source = "import json\ndef compute_score(data):\n    raise ValueError(json.dumps(data[0], sort_keys=True))"
    with pytest.raises(FunctionRaised) as caught:
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
        ("import nowhere_to_be_found\ndef compute_score(data): pass",
         "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to_be_found' (line 1)"),
        ("raise SystemExit(3)\ndef compute_score(data): pass", "cannot be loaded: SystemExit: 3 (line 1)"),
        ("def other(data): pass", "has no function 'compute_score'; it has: other"),
        ("def compute_score(): pass", "compute_score() has neither form; allowed: one parameter, a list of dicts, or "
         "keyword parameters of data_source, solution_str, ground_truth, extra_info"),
        ("def compute_score(a, b): pass", "compute_score(a, b) has neither form"),
        ("class compute_score:\n    def __init__(self, data): pass",
         "has no function 'compute_score'; it has: none"),
        ("compute_score = max", "my_reward.py: compute_score: no signature found for builtin <built-in function max>"),
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
        told = f"rewards.custom.params.path is {path!r}; allowed: a Python file that is there"
        assert str(caught.value) == told + ("" if path else f" (working directory: {Path.cwd()})")
    file.write_text("def f(:")
    with pytest.raises(ConfigError, match=r"params\.path: .*my_reward\.py is not Python: "):
        Custom(CustomConfig(path=str(file)))
    problems = option_problems(CustomConfig(workers=0, timeout_s=0))
    assert [problem.split()[0] for problem in problems] == ["workers", "timeout_s"]


def test_a_function_that_the_file_does_not_have_is_refused_when_it_is_built(file: Path) -> None:
    """A dry run builds the reward and runs nothing of the file."""
    file.write_text("def compute_score(data): return [0.0]\n")
    with pytest.raises(ConfigError) as caught:
        Custom(CustomConfig(path=str(file), function="reward"))
    assert str(caught.value) == (
        f"rewards.custom: {file} has no function 'reward'; it has: compute_score (rewards.custom.params.function)"
    )
    for source in ("from scores import judge as reward", "globals()['reward'] = len", "from scores import *"):
        file.write_text(source)
        Custom(CustomConfig(path=str(file), function="reward"))


def test_arguments_that_the_function_does_not_take_are_said_before_the_first_score(file: Path) -> None:
    source = "def compute_score(data, scale=1): return [scale] * len(data)"
    with pytest.raises(ConfigError) as caught:
        scores(file, source, [], arguments={"scle": 2})
    assert str(caught.value) == (
        'rewards.custom: compute_score(data, scale=1) cannot be called with arguments {"scle": 2}: got an unexpected '
        "keyword argument 'scle'"
    )


def test_a_file_that_is_edited_during_a_run_changes_none_of_its_scores(file: Path, group: list[Rollout]) -> None:
    file.write_text("def compute_score(data): return [1] * len(data)")

    async def main() -> list[Any]:
        reward = Custom(CustomConfig(path=str(file)))
        file.write_text("def compute_score(data): return [7] * len(data)")
        found = list(await reward(group))
        await reward.aclose()
        return values(found)

    assert asyncio.run(main()) == [1.0, 1.0, 1.0]


def test_the_file_is_recorded_with_the_run(file: Path) -> None:
    assert CustomConfig(path=str(file)).input_files() == {}  # it is refused when it is built
    file.write_text("")
    assert CustomConfig(path=str(file)).input_files() == {"path": str(file)}
    assert LlmJudgeConfig().input_files() == {}
    assert LlmJudgeConfig(prompt=str(file)).input_files() == {"prompt": str(file)}


def test_modules_of_the_working_directory_are_not_imported(
    file: Path, group: list[Rollout], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "socket.py").write_text("raise SystemExit('the wrong socket')")
    monkeypatch.chdir(elsewhere)
    assert values(scores(file, "def compute_score(data): return [1] * len(data)", group)) == [1.0, 1.0, 1.0]


BUSY = """
import pathlib, subprocess, sys, time
def compute_score(data):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pathlib.Path(__file__).with_name("pids").write_text(f"{__import__('os').getpid()} {child.pid} ")
    time.sleep(600)
"""


def running(file: Path) -> list[int]:
    """Processes of `BUSY` that are there; waits until both have begun."""
    pids = file.with_name("pids")
    deadline = time.monotonic() + 30
    while (not pids.exists() or not pids.read_text().endswith(" ")) and time.monotonic() < deadline:
        time.sleep(0.05)
    found = [int(pid) for pid in pids.read_text().split()]
    return [pid for pid in found if Path(f"/proc/{pid}").exists() and not is_zombie(pid)]


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def all_ended(file: Path) -> bool:
    deadline = time.monotonic() + 10
    while running(file) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not running(file)


def test_closing_ends_what_is_running_and_waits_for_no_deadline(file: Path, group: list[Rollout]) -> None:
    file.write_text(BUSY)

    async def main() -> None:
        reward = Custom(CustomConfig(path=str(file), timeout_s=600))
        scoring = asyncio.ensure_future(reward(group))
        assert len(await asyncio.to_thread(running, file)) == 2
        await reward.aclose()
        with pytest.raises(InfraError, match="the process ended"):
            await scoring

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 30
    assert all_ended(file)


def test_a_function_that_is_running_ends_with_the_process_that_asked(file: Path) -> None:
    file.write_text(BUSY)
    driver = (
        "import asyncio, sys; from ramet.helpers import ProcessPool\n"
        "pool = ProcessPool('ramet_rewards.custom_worker', sys.argv[1:3], size=1, deadline_s=600)\n"
        "asyncio.run(pool.ask({'data': [], 'arguments': {}, 'source': open(sys.argv[1]).read()}))"
    )
    with subprocess.Popen([sys.executable, "-c", driver, str(file), "compute_score"]) as process:
        assert len(running(file)) == 2
        process.kill()
    assert all_ended(file)


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
        ("import time; time.sleep(60)", "no result within 0.5 s"),
        ("os.abort()", "the process ended"),
        ("os._exit(0)", "the process ended"),
    ],
)
def test_a_function_that_hangs_or_ends_its_process_judges_nothing_and_the_next_group_is_judged(
    file: Path, group: list[Rollout], source: str, problem: str
) -> None:
    again = file.with_name("again")
    file.write_text(
        f"import os\ndef compute_score(data):\n    if not os.path.exists({str(again)!r}): {source}\n"
        "    return [1] * len(data)"
    )

    async def main() -> list[Any]:
        reward = Custom(CustomConfig(path=str(file), timeout_s=0.5))
        with pytest.raises(InfraError) as caught:
            await reward(group)
        assert str(caught.value) == f"my_reward.py: compute_score: {problem}"
        again.touch()
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


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("def compute_score(a, b=1, *, c): pass", None),
        ("async def compute_score(solution_str, x, y=2): pass", None),
        ("def compute_score(a, /, **more): pass", None),
        ("def wrap(f): return f\n@wrap\ndef compute_score(a, b): pass", None),  # the decorator may change them
        ("def compute_score(a, b): pass\ncompute_score = len", None),
        ("def compute_score(a, b: int, *c, d=1): pass", "compute_score(a, b: int, *c, d=1)"),
    ],
)
def test_a_wrong_form_is_found_before_the_start_without_running_the_file(
    file: Path, source: str, form: str | None
) -> None:
    file.write_text(source)
    config = CustomConfig(path=str(file))
    if form is None:
        Custom(config)
        return
    with pytest.raises(ConfigError) as caught:
        Custom(config)
    assert str(caught.value).startswith(f"rewards.custom: {file}: {form} has neither form; ")
