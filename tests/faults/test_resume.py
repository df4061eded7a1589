"""F29, F30, F31: a run goes on with another configuration, other data, another tokenizer, plugin or batch size.

What would mix two runs is refused with both values, and nothing in the run directory is touched. What goes on, goes on
at the exact next task, also where an epoch ends.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ramet.config.compose import compose
from ramet.errors import ConfigError, ConfigErrors
from ramet.evaluate.evaluation import run as evaluate

LINES = [f"task {i}" + "!" * i for i in range(7)]


def contents(folder: Path) -> dict[str, str]:
    """Hashes of all files of a run, but of the lock, which every process takes."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "LOCK")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def stopped(workspace) -> str:
    """A run of two steps, with weights, metrics and rollouts of its own."""
    workspace.train("stopped", steps=2)
    return "stopped"


@pytest.fixture
def refused(workspace, stopped) -> Callable[..., list[str]]:
    """Problems of a resume that must not happen."""

    def resume(*more: str) -> list[str]:
        before = contents(workspace.runs / stopped)
        with pytest.raises(ConfigErrors) as caught:
            workspace.train(stopped, *more, steps=3)
        assert contents(workspace.runs / stopped) == before, "a refused resume leaves everything as it was"
        return caught.value.problems

    return resume


def test_all_differences_are_listed_and_what_alters_the_numbers_needs_a_permission(refused):
    """F29."""
    problems = refused("policy.lr=0.002", "rollout.max_response_tokens=48", "train.minibatches=2", "trackers=[]")
    assert [problem.partition(";")[0] for problem in problems] == [
        "policy.lr was 0.001, is 0.002",
        "rollout.max_response_tokens was 64, is 48",
        "train.minibatches was 1, is 2",
    ]
    assert all("run.allow_config_change=true" in problem for problem in problems)


def test_changes_of_logging_evaluation_saving_and_length_go_on_and_are_told(workspace, stopped, tmp_path, caplog):
    """F29."""
    shutil.copytree(workspace.runs / stopped, workspace.runs / "safe")
    valid = tmp_path / "valid.jsonl"
    valid.write_text('{"prompt": "one", "answer": "x"}\n')
    safe = ["train.save_every=2", "train.keep_checkpoints=1", f"data.valid=[{valid}]", "train.eval_every=1"]
    with caplog.at_level(logging.INFO, logger="ramet"):
        workspace.train("safe", *safe, steps=3)
    for text in ("train.save_every was 1, is 2", "train.eval_every was 0, is 1", "train.steps was 2, is 3"):
        assert f"resume with a change: {text}" in caplog.text
    assert [line["step"] for line in workspace.metrics("safe")] == [1, 2, 3]
    assert "valid/reward" in workspace.metrics("safe")[2]


def test_with_permission_other_changes_go_on_and_are_recorded(workspace, stopped, caplog):
    """F29."""
    shutil.copytree(workspace.runs / stopped, workspace.runs / "allowed")
    workspace.train("allowed", "policy.lr=0.002", "run.allow_config_change=true", steps=3)
    assert "resume with a change that alters the numbers: policy.lr was 0.001, is 0.002" in caplog.text
    assert workspace.metrics("allowed")[2]["train/lr"] == pytest.approx(0.002)
    assert "lr: 0.002" in (workspace.runs / "allowed/config.yaml").read_text()


DATA_CHANGES = {
    "a text": [*LINES[:6], "another task"],
    "the order": LINES[::-1],
    "a task more": [*LINES, "task 7"],
    "a task less": LINES[:6],
}


@pytest.mark.parametrize("change", DATA_CHANGES)
@pytest.mark.parametrize("allowed", ["false", "true"])
def test_other_training_data_is_refused_with_its_fingerprints(workspace, refused, change, allowed):
    """F30: no permission makes the position in one order mean anything in another."""
    before = workspace.tasks.read_text()
    rows = [{"prompt": prompt, "answer": "x"} for prompt in DATA_CHANGES[change]]
    workspace.tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    try:
        [problem] = refused(f"run.allow_config_change={allowed}")
    finally:
        workspace.tasks.write_text(before)
    assert problem.startswith("the training data changed: ") and f" 7 tasks of {workspace.tasks} (sha256 " in problem
    assert f"now there are {len(rows)} of" in problem or f"now there are {len(rows)} tasks of" in problem


@pytest.mark.parametrize("more", [["data.limits.train=5"], ["data.max_prompt_tokens=12"]])
def test_another_choice_of_the_same_data_is_refused_too(workspace, refused, more):
    """F30: what is left out shifts everything after it."""
    problems = refused(*more, "run.allow_config_change=true")
    assert [problem.partition(":")[0] for problem in problems] == ["the training data changed"]


def test_another_tokenizer_or_chat_template_is_refused(workspace, stopped, refused, tmp_path):
    """F30."""
    template = workspace.model / "chat_template.jinja"
    before = template.read_text()
    template.write_text(before + " ")
    try:
        [problem] = refused()
    finally:
        template.write_text(before)
    assert problem.startswith("files of the model") and ": sha256 was " in problem
    own = tmp_path / "own.jinja"
    own.write_text(before)
    workspace.train("templated", f"model.chat_template={own}", steps=1)
    own.write_text("x" + before)
    with pytest.raises(ConfigErrors, match=r"^files of the model.* sha256 was "):
        workspace.train("templated", f"model.chat_template={own}", steps=2)


def test_another_version_of_a_plugin_is_refused(workspace, stopped, refused):
    """F30."""
    manifest = workspace.runs / stopped / "manifest.json"
    before = manifest.read_text()
    record = json.loads(before)
    record["plugins"][0]["version"] = "0.0.1"
    manifest.write_text(json.dumps(record))
    try:
        [problem] = refused()
    finally:
        manifest.write_text(before)
    assert problem.startswith("plugin core was ramet 0.0.1, is ramet ")


def test_a_checkpoint_of_other_data_is_refused_even_where_the_manifest_agrees(workspace, stopped):
    """F30: somebody copied checkpoints from another run."""
    run = workspace.runs / "copied"
    shutil.copytree(workspace.runs / stopped, run)
    workspace.train("other", "data.limits.train=6", steps=1)
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(workspace.runs / "other/checkpoints", run / "checkpoints")
    with pytest.raises(ConfigError, match="step_000001: written with other training data"):
        workspace.train("copied", steps=3)


OTHER_TASKS = (
    r"which differs in: settings\.tasks_sha256\.arithmetic, benchmarks\.arithmetic\.params\.seed was 1, is 99; remove "
    r"the file or choose another run\.out$"
)


def test_an_evaluation_of_other_tasks_is_refused(workspace, tmp_path, monkeypatch):
    """F30, in `ramet eval`: finished tasks are kept, so they must be the same tasks."""
    out = tmp_path / "results.json"
    evaluate(compose(workspace.measure("first", f"run.out={out}"), job="eval"))
    more = ["benchmarks.arithmetic.params.seed=99", f"run.out={out}"]
    with pytest.raises(ConfigError, match=OTHER_TASKS):
        evaluate(compose(workspace.measure("second", *more), job="eval"))


@pytest.mark.parametrize("limit", [6, 7], ids=["an epoch ends between two steps", "an epoch ends within a step"])
def test_a_run_resumed_where_an_epoch_ends_takes_the_exact_next_tasks(workspace, limit):
    """F31: 3 tasks a step; after step 2 an epoch of 6 is over, and one of 7 within step 3."""
    data = f"data.limits.train={limit}"
    whole, cut = f"whole_{limit}", f"cut_{limit}"
    workspace.train(whole, data, steps=5)
    for steps in (2, 3, 5):
        workspace.train(cut, data, steps=steps)
    played = [workspace.seen(cut, step) for step in range(1, 6)]
    assert played == [workspace.seen(whole, step) for step in range(1, 6)]
    assert len({task for step in played[:2] for task in step}) == 6, "no task twice in an epoch"
    in_order = [task for step in played for task in step]
    assert len(set(in_order[:limit])) == limit, "none lost"
    for step in range(1, 6):
        assert workspace.sampled(cut, step) == workspace.sampled(whole, step)


@pytest.mark.parametrize("change", ["train.tasks_per_step=2", "run.seed=12", "data.order=file"])
@pytest.mark.parametrize("allowed", ["false", "true"])
def test_what_decides_which_tasks_a_step_gets_is_never_changed_on_the_way(refused, change, allowed):
    """F31: the exact next task, or no next task."""
    [problem] = refused(change, f"run.allow_config_change={allowed}")
    assert problem.startswith(change.partition("=")[0])
    assert "a resumed run would skip some and repeat others" in problem
