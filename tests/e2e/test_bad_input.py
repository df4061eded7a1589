"""Bad input to `ramet train`, from command line to exit code: all problems in one go, a line each, no traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest

ROWS = {
    "good": [{"prompt": "a", "answer": "b"}] * 3,
    "empty": [],
    "no_answer": [{"prompt": "a", "gold": "b"}],
    "bad_rows": [{"prompt": "a", "answer": "b"}, {"prompt": 3, "answer": "b"}, {"prompt": "a", "answer": [True]}],
    "hammer": [{"prompt": "a", "answer": "b", "tools": ["hammer"]}] * 3,
}
# overrides ({data} is the folder of the files above) -> what each error line begins with, or contains after "…"
MISTAKES = {
    "unknown_key": (["train.stepz=3"], ["train.stepz: no such key. Did you mean 'train.steps'?"]),
    "unknown_plugin": (["branch_policy=arpp"], ["branch_policy: no 'arpp'. Did you mean 'arpo'?"]),
    "configuration": (
        ["train.stepz=3", "rewards=[e2e_evn]", "policy.lr=fast", "sft.lr=1"],
        [
            "train.stepz: ", "rewards: no 'e2e_evn'. Did you mean 'e2e_even'?", "policy.lr: expected float, got 'fast'",
            "sft.lr: `ramet train` has no section 'sft'",
        ],
    ),
    "missing_file": (["data.train=[{data}/nowhere.jsonl]"], ["{data}/nowhere.jsonl: no such file"]),
    "empty_file": (["data.train=[{data}/empty.jsonl]"], ["{data}/empty.jsonl: …empty"]),
    "missing_column": (
        ["data.train=[{data}/no_answer.jsonl]"],
        ["{data}/no_answer.jsonl: no column 'answer' …; found prompt, gold; name it with data.columns.answer"],
    ),
    "wrong_type": (
        ["data.train=[{data}/bad_rows.jsonl]"],
        [
            "{data}/bad_rows.jsonl, row 2: column prompt: expected a text that is not empty, got 3",
            "{data}/bad_rows.jsonl, row 3: column answer: expected a text, a number, or a list of them, got True",
        ],
    ),
    "unknown_tool_in_data": (
        ["data.train=[{data}/hammer.jsonl]"],
        ["tools: the data names 'hammer'; configured: e2e_digest"],
    ),
    "no_model": (["model.path={data}/nowhere"], ["model.path: '{data}/nowhere' is not a folder"]),
    "no_end_of_sequence": (["model.path={data}/no_eos"], ["model.path: …has no end-of-sequence token"]),
    "only_long_prompts": (
        ["data.max_prompt_tokens=3"],
        ["no task is left: 7 of 7 tasks are longer than data.max_prompt_tokens=3; the longest has 9 tokens"],
    ),
    "too_few_tasks": (
        ["train.tasks_per_step=8"],
        ["train.tasks_per_step=8: the data set has 7 tasks; allowed: 1 to 7"],
    ),
    "not_deterministic": (
        ["run.threads=2", "engine.params.slots=15"],
        [
            "run.deterministic=true: needs run.threads=1, got 2",
            "run.deterministic=true: needs engine.params.slots of at least rollout.max_concurrent=16, got 15",
        ],
    ),
    "nothing_to_look_at": (
        [
            "data.train=[{data}/bad_rows.jsonl,{data}/nowhere.jsonl]", "model.path={data}/nowhere", "train.epochs=0",
            "trackers=[carrier_pigeon]",
        ],
        [
            "model.path: ", "{data}/nowhere.jsonl: no such file", "train.epochs=0: ",
            "trackers: no tracker 'carrier_pigeon'. Trackers: console, jsonl, wandb, tensorboard, samples",
        ],
    ),
    "all_together": (
        [
            "data.train=[{data}/bad_rows.jsonl]", "data.valid=[{data}/no_answer.jsonl]", "model.path={data}/no_eos",
            "train.epochs=0", "run.threads=0", "trackers=[carrier_pigeon]", "branch_policy.params.initial_rollouts=9",
        ],
        [
            "{data}/bad_rows.jsonl, row 2: ", "{data}/bad_rows.jsonl, row 3: ",
            "{data}/no_answer.jsonl: no column", "model.path: ", "train.epochs=0: ", "run.threads=0: ",
            "run.deterministic=true: needs run.threads=1, got 0",
            "trackers: no tracker 'carrier_pigeon'. Trackers: console, jsonl, wandb, tensorboard, samples",
            "branch_policy.params.initial_rollouts: 9 is more than rollout.group_size, 8",
        ],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def data(workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, rows in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    without(workspace.model, folder / "no_eos", "eos_token")
    without(workspace.model, folder / "no_pad", "pad_token")
    return folder


def without(model: Path, copy: Path, token: str) -> None:
    """A copy of the model whose tokenizer lacks a token."""
    shutil.copytree(model, copy)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        file = copy / name
        if file.exists():
            values = json.loads(file.read_text())
            values.pop(token, None)
            file.write_text(json.dumps(values))


def holds(line: str, expected: str) -> bool:
    start, _, rest = expected.partition("…")
    return line.startswith(start) and rest in line


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_before_anything_starts(ramet, workspace, data: Path, tmp_path: Path, mistake: str):
    overrides, expected = ([text.replace("{data}", str(data)) for text in texts] for texts in MISTAKES[mistake])
    ended = ramet(*workspace.train(f"run.root={tmp_path / 'runs'}", *overrides), cwd=tmp_path)
    assert ended.code == 1
    assert "Traceback" not in ended.err
    unmatched = [text for text in expected if not any(holds(line, text) for line in ended.errors)]
    assert not unmatched, ended.err
    assert len(ended.errors) == len(ended.err.splitlines()) == len(expected), ended.err
    assert not (tmp_path / "runs").exists()


def test_a_tokenizer_without_pad_trains_and_says_what_it_pads_with(ramet, workspace, data: Path, tmp_path: Path):
    ended = ramet(
        *workspace.train(f"run.root={tmp_path}", f"model.path={data / 'no_pad'}", "train.steps=1"), cwd=tmp_path
    )
    assert ended.code == 0
    assert ended.err.count("has no pad token: its end-of-sequence token is used") == 1


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        ("e2e_nan", " with nan: "),
        ("e2e_few", "returned 7 scores for 8 rollouts: "),
    ],
)
def test_a_reward_that_breaks_the_contract_stops_the_run(ramet, workspace, tmp_path: Path, reward: str, problem: str):
    ended = ramet(
        *workspace.train(f"run.root={tmp_path}", "train.eval_first=false", f"rewards=[{reward}]"), cwd=tmp_path
    )
    assert ended.code == 1
    assert "Traceback" not in ended.err
    [line] = ended.errors
    assert line.startswith(f"reward '{reward}' of plugin 'e2e_plugin', task 'tasks/") and problem in line


def test_a_resume_with_other_data_or_configuration_is_refused(ramet, workspace, tmp_path: Path):
    tasks = tmp_path / "tasks.jsonl"
    shutil.copy(workspace.folder / "tasks.jsonl", tasks)
    command = workspace.train(f"run.root={tmp_path}", "run.name=mine", f"data.train=[{tasks}]", "train.steps=1")
    assert ramet(*command, cwd=tmp_path).code == 0
    before = (tmp_path / "mine/config.yaml").read_text()
    with tasks.open("a") as file:
        file.write(json.dumps({"prompt": "one more", "answer": "x"}) + "\n")
    ended = ramet(*command, "policy.lr=0.5", "rollout.first_tokens=2", "train.steps=2", cwd=tmp_path)
    assert ended.code == 1
    assert "Traceback" not in ended.err
    data, *changed = ended.errors
    assert "training data" in data and f"7 tasks of {tasks}" in data
    assert [line.partition(";")[0] for line in changed] == [
        "policy.lr was 0.001, is 0.5",
        "rollout.first_tokens was 3, is 2",
    ]
    assert (tmp_path / "mine/config.yaml").read_text() == before


def test_a_run_directory_in_use_is_refused_at_once_until_its_owner_is_dead(ramet, workspace, tmp_path: Path):
    command = workspace.train(f"run.root={tmp_path}", "run.name=mine", "train.eval_first=false", "train.steps=1")
    first = ramet.start(*command, cwd=tmp_path, E2E_LATENCY_S="600")
    lock = tmp_path / "mine/LOCK"
    while not (lock.exists() and lock.read_text()):
        time.sleep(0.01)
    started = json.loads(lock.read_text())["started"]
    second = ramet(*command, cwd=tmp_path)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait().code == -9
    assert second.code == 1
    owner = f"pid {first.pid} on {socket.gethostname()}, started {started}"
    assert second.errors == [
        f"run directory '{tmp_path / 'mine'}' is in use by {owner}; choose another run.name, or wait for it"
    ]
    third = ramet(*command, cwd=tmp_path)
    assert third.code == 0
    assert f"its owner (pid {first.pid}, started {started}) is dead" in third.err
