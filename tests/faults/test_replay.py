"""`ramet train --replay RUN`: the updates of an asynchronous run follow from its records, to the bit."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ramet.cli.app import main
from ramet.errors import ConfigErrors, RametError
from ramet.train.replay import largest_difference, run

AHEAD = ("run.deterministic=false", "run.threads=1", "tools.fault_tool.params.straggler=/0",
         "tools.fault_tool.params.sleep_s=0.2", "train.staleness=2", "train.keep_checkpoints=9")  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("grpo", ("train.resample_rounds=1", "train.minibatches=2")),
        ("remax", ("advantage=remax",)),
        ("critic", ("advantage=gae", "train.kl_coef=0.01", "train.kl_target=0.01")),
    ],
)
def test_the_replay_of_a_run_ends_with_its_parameters(workspace, name, keys, caplog):
    first = workspace.train(name, *AHEAD, *keys, steps=3)
    assert max(line["train/version_lag_max"] for line in workspace.metrics(name)) > 0
    with caplog.at_level("INFO", logger="ramet"):
        found = run(first, [f"run.name={name}_again", "trackers=[jsonl]"])
    assert (found.steps, found.difference) == (3, 0.0)
    assert f"after 3 steps the parameters equal {first}/checkpoints/step_000003, to the bit" in caplog.messages
    assert files(found.model)["model.safetensors"] == files(first / "model")["model.safetensors"]
    assert files(found.run / "rollouts") == files(first / "rollouts")
    losses = [[line["train/loss"] for line in workspace.metrics(one)] for one in (name, f"{name}_again")]
    assert losses[0] == losses[1]
    assert largest_difference(first / "checkpoints/step_000002", found.run / "checkpoints/step_000003") > 0


def test_a_replay_stands_for_its_run_and_goes_on_as_that_would(workspace):
    """Its checkpoint has the run's place in the data."""
    workspace.train("whole", *AHEAD, "train.async_save=true", steps=2)
    run(workspace.runs / "whole", ["run.name=whole_again"])
    workspace.train("whole", *AHEAD, "train.async_save=true", steps=3)
    workspace.train("whole_again", *AHEAD, "train.async_save=true", steps=3)
    assert workspace.seen("whole_again", 3) == workspace.seen("whole", 3)


@pytest.fixture(scope="module")
def small(workspace):
    return workspace.train("small", *AHEAD, steps=1)


def test_what_would_make_other_updates_is_refused_and_nothing_is_written(workspace, small):
    with pytest.raises(ConfigErrors) as caught:
        run(small, ["run.name=other", "policy.lr=0.002", "train.epochs=2"])
    told = f"the updates would differ from {small}: undo it, or set run.allow_config_change=true"
    assert caught.value.problems == [f"policy.lr was 0.001, is 0.002; {told}", f"train.epochs was 1, is 2; {told}"]
    assert not (workspace.runs / "other").exists()


def test_with_permission_the_difference_is_told(workspace, small, caplog):
    found = run(small, ["run.name=permitted", "policy.lr=0.002", "run.allow_config_change=true"])
    assert found.difference > 0
    expected = f"after 1 steps the parameters differ from {small}/checkpoints/step_000001 by at most "
    assert any(message.startswith(expected) for message in caplog.messages)


def test_a_replay_never_writes_into_a_run(small):
    before = files(small / "rollouts")
    with pytest.raises(RametError, match=re.escape("run.name=small: there is a run already; a replay needs another")):
        run(small, ["run.name=small"])
    assert files(small / "rollouts") == before


def test_code_that_a_run_names_is_trusted_first(workspace, small, tmp_path):
    given, reward = shutil.copytree(small, tmp_path / "given"), tmp_path / "reward.py"
    reward.write_text("def compute_score(rollout): return 1.0")
    with (given / "overrides.txt").open("a") as overrides:
        overrides.write(f"rewards=[custom]\nrewards.custom.params.path={reward}\n")
    with pytest.raises(ConfigErrors, match=r"rewards\.custom\.params\.path.*--trust-recipe .*/given/overrides\.txt"):
        run(given, ["run.name=given_again"])
    assert not (workspace.runs / "given_again").exists()


def test_what_cannot_be_replayed_is_said(workspace, small, tmp_path, capsys):
    for folder, problem in (
        (tmp_path, "it has no config.yaml and no manifest.json"),
        (tmp_path / "no", "no such directory"),
    ):
        with pytest.raises(RametError) as caught:
            run(folder)
        here = f"(working directory: {Path.cwd()})"
        assert str(caught.value) == f"--replay: {folder} is not a run directory: {problem} {here}"
    assert main(["train", "--replay", str(small), "--dry-run"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: --replay: `ramet train --replay RUN` makes the updates of a run again, `ramet eval --replay RESULT` "
        "scores a finished evaluation again; both without --dry-run, --cfg and -m"
    )
    (small / "rollouts/step_000001.jsonl.gz").rename(tmp_path / "record")
    with pytest.raises(ConfigErrors) as missing:
        run(small, ["run.name=unrecorded"])
    assert missing.value.problems == [
        f"--replay: {small}/rollouts/step_000001.jsonl.gz is missing; the updates of step_000001 follow from the "
        "records of all steps"
    ]
    assert not (workspace.runs / "unrecorded").exists()
