"""F20, F21: a run that is asked to stop saves itself, says how to go on, and goes on as if nothing had happened."""

from __future__ import annotations

import gzip
import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ramet.policy.checkpoint.store import verify

STEPS = 4
# A chain is one run that is stopped again and again, each time at a later point of its steps, and resumed as it said.
# point:step where the signal comes, and the last step that is saved then.
CHAINS = {
    "before_updates": [("first_requests:1", 0), ("generating:2", 1), ("scoring:2", 1), ("tools:3", 2), ("scored:4", 3)],
    "around_updates": [("estimated:1", 0), ("updated:1", 1), ("recorded:2", 2), ("update:3", 3), ("logged:4", 4)],
    "after_updates": [("validation:2", 2), ("sync:3", 3), ("sealing:4", 4), ("export:0", 4)],
}


def train(workspace, root: Path, *more: str) -> list[str]:
    """A run that saves only its last step by itself."""
    return workspace.train(f"run.root={root}", "run.name=run", "train.save_every=100", *more)


def steps(root: Path) -> list[int]:
    """Of the checkpoints under their final names, all of which must be whole."""
    folders = sorted((root / "run/checkpoints").glob("step_*"))
    assert [verify(folder) for folder in folders] == [[] for _ in folders]
    return [int(folder.name.removeprefix("step_")) for folder in folders]


def outcome(root: Path) -> dict[str, Any]:
    """What training made: token ids and advantages of all steps, metrics, weights and optimiser."""
    run = root / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = ("step", "reward/", "train/", "valid/")
    last = run / f"checkpoints/step_{STEPS:06d}"
    return {
        "metrics": [
            {k: v for k, v in line.items() if k.startswith(kept) and not k.endswith(("_s", "_per_s"))} for line in lines
        ],
        "rollouts": [
            (group["segments"], [(r["id"], r["segments"], r["reward"], r["advantages"]) for r in group["rollouts"]])
            for step in range(1, STEPS + 1)
            for group in map(json.loads, gzip.open(run / f"rollouts/step_{step:06d}.jsonl.gz", "rt"))
        ],
        "files": [
            hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (run / "model/model.safetensors", last / "__0_0.distcp", last / "rank_00000.pt")
        ],
    }


@pytest.fixture(scope="module")
def undisturbed(ramet, workspace, tmp_path_factory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("undisturbed")
    assert ramet(*train(workspace, root), cwd=root).code == 0
    return outcome(root)


@pytest.mark.parametrize("chain", CHAINS)
def test_sigterm_in_every_phase_saves_the_last_whole_step_and_the_printed_command_goes_on_exactly(
    ramet, workspace, undisturbed, tmp_path, chain
):
    command = train(workspace, tmp_path)
    for point, saved in CHAINS[chain]:
        log = tmp_path / point
        ended = ramet(*command, cwd=tmp_path, E2E_KILL=point, E2E_SIGNAL="SIGTERM", E2E_KILL_LOG=str(log))
        assert log.exists(), f"the signal did not come at {point}"
        assert ended.code == 143, ended.err
        assert "Traceback" not in ended.err and "never retrieved" not in ended.err, ended.err
        assert ended.err.splitlines()[-1] == "stopped by SIGTERM"
        assert steps(tmp_path)[-1:] == [saved][:saved], point
        assert json.loads((tmp_path / "run/manifest.json").read_text())["attempts"][-1]["status"] == "interrupted"
        [said] = [line for line in ended.err.splitlines() if line.startswith("resume with: ")]
        words = shlex.split(said.removeprefix("resume with: "))
        assert words[0].startswith("PYTHONPATH=") and words[1:4] == ["RAMET_PLUGINS=e2e_plugin", "ramet", "train"]
        command = words[3:]
    ended = ramet(*command, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert outcome(tmp_path) == undisturbed


def test_ctrl_c_ends_with_130_and_saves_too(ramet, workspace, tmp_path):
    more = {"E2E_KILL": "tools:2", "E2E_SIGNAL": "SIGINT", "E2E_KILL_LOG": str(tmp_path / "log")}
    ended = ramet(*train(workspace, tmp_path), cwd=tmp_path, **more)
    assert (ended.code, steps(tmp_path)) == (130, [1])
    assert ended.err.splitlines()[-1] == "stopped by SIGINT"


def test_before_the_first_step_there_is_nothing_to_wait_for(ramet, workspace, tmp_path):
    more = {"E2E_KILL": "start:0", "E2E_SIGNAL": "SIGTERM", "E2E_KILL_LOG": str(tmp_path / "log")}
    ended = ramet(*train(workspace, tmp_path), cwd=tmp_path, **more)
    assert (ended.code, steps(tmp_path)) == (143, [])
    assert " ramet train model.path=" in ended.err and "saving" not in ended.err


def test_a_second_signal_during_the_save_ends_at_once_and_the_checkpoint_before_stays_whole(
    ramet, workspace, undisturbed, tmp_path
):
    """F21."""
    command, log = train(workspace, tmp_path), str(tmp_path / "log")
    assert ramet(*command, cwd=tmp_path, E2E_KILL="tools:2", E2E_SIGNAL="SIGTERM", E2E_KILL_LOG=log).code == 143
    for points, whole in (("tools:3,sealing:3", [1]), ("tools:3,sealed:3", [1]), ("tools:4,renamed:4", [1, 3])):
        ended = ramet(*command, cwd=tmp_path, E2E_KILL=points, E2E_SIGNAL="SIGTERM", E2E_KILL_LOG=log)
        assert (ended.code, ended.err.splitlines()[-1]) == (143, "SIGTERM again: ended at once")
        assert steps(tmp_path) == whole
    ended = ramet(*command, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert outcome(tmp_path) == undisturbed


def test_a_second_signal_while_an_old_checkpoint_is_deleted_leaves_no_half_of_it(ramet, workspace, tmp_path):
    keep = train(workspace, tmp_path, "train.save_every=1", "train.keep_checkpoints=1")
    more = {"E2E_KILL": "update:2,pruning:2", "E2E_SIGNAL": "SIGINT", "E2E_KILL_LOG": str(tmp_path / "log")}
    ended = ramet(*keep, cwd=tmp_path, **more)
    assert (ended.code, ended.err.splitlines()[-1]) == (130, "SIGINT again: ended at once")
    assert json.loads((tmp_path / "log").read_text())["point"] == "pruning"
    checkpoints = tmp_path / "run/checkpoints"
    [half, whole] = sorted(path.name for path in checkpoints.iterdir())
    assert half.startswith(".step_000001.") and half.endswith(".old") and whole == "step_000002"
    assert steps(tmp_path) == [2]
    listed = ramet("checkpoints", str(tmp_path / "run"), cwd=tmp_path)
    assert listed.code == 0 and "BROKEN" not in listed.out and ".old" not in listed.out
    assert ramet(*keep, cwd=tmp_path).code == 0
    assert [path.name for path in checkpoints.iterdir()] == ["step_000004"]


def test_a_grace_of_nothing_leaves_the_validation_out_and_saves_the_step(ramet, workspace, tmp_path):
    more = {"E2E_KILL": "update:2", "E2E_SIGNAL": "SIGTERM", "E2E_KILL_LOG": str(tmp_path / "log")}
    ended = ramet(*train(workspace, tmp_path, "train.grace_s=0"), cwd=tmp_path, **more)
    assert (ended.code, steps(tmp_path)) == (143, [2])
    assert "step 2: no time left for its weight sync and validation" in ended.err
