"""`run.deterministic=true`: a run killed anywhere and resumed is the run that was never disturbed, bit by bit."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

STEPS = 4
# A chain is one run that is killed again and again, each time at a later point of its steps, and then left alone.
CHAINS = {
    "rollouts": (2, ["start:0", "first_requests:1", "tools:2", "fork:3", "late_requests:4"]),
    "engine": (1, ["generating:1", "scoring:2", "restore:0", "scored:3", "sync:4"]),
    "learning": (2, ["estimated:1", "recording:2", "recorded:3", "validation:4"]),
    "updates": (1, ["update:1", "updated:2", "update:3", "logging:3", "logged:4"]),
    "saving": (1, ["saving:1", "sealing:1", "sealed:2", "renamed:3", "saved:4", "export:0"]),
}


@dataclass(frozen=True)
class Run:
    """What a run directory holds, without the clock."""

    path: Path

    def records(self, step: int) -> list[dict[str, Any]]:
        """Groups as they were recorded: ids, text, log-probabilities, entropies, forks, rewards, advantages."""
        with gzip.open(self.path / f"rollouts/step_{step:06d}.jsonl.gz", "rt") as lines:
            return [timeless(json.loads(line)) for line in lines]

    def recorded(self) -> list[int]:
        return [step for step in range(1, STEPS + 1) if (self.path / f"rollouts/step_{step:06d}.jsonl.gz").exists()]

    def metrics(self) -> list[dict[str, float]]:
        """Of every line: the step, and whatever does not measure time or the engine's work."""
        lines = [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]
        kept = ("step", "reward/", "group/", "train/", "valid/")
        return [
            {k: v for k, v in line.items() if k.startswith(kept) and not k.endswith(("_s", "_per_s"))} for line in lines
        ]

    def weights(self) -> dict[str, str]:
        """Hashes of the trained model and of the last checkpoint's weights and optimiser."""
        files = {"model": self.path / "model/model.safetensors"} | {
            file.name: file for file in (self.path / f"checkpoints/step_{STEPS:06d}").glob("[_r.]*")
        }
        return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}

    def leftovers(self) -> list[Path]:
        return [path for path in self.path.rglob(".*") if "tmp" in path.name]


def timeless(group: dict[str, Any]) -> dict[str, Any]:
    for rollout in group["rollouts"]:
        rollout["stats"] = {k: v for k, v in rollout["stats"].items() if k in ("sampled_tokens", "prompt_tokens")}
        for call in rollout["tool_calls"]:
            del call["wait_s"], call["run_s"], call["cached"]
    return group


@pytest.fixture(scope="module")
def undisturbed(ramet, workspace) -> Run:
    ended = ramet(*workspace.train(f"run.root={workspace.folder}", "run.name=undisturbed"), cwd=workspace.folder)
    assert ended.code == 0, ended.err
    return Run(workspace.folder / "undisturbed")


def same(run: Run, other: Run) -> None:
    """Both are whole, and equal in everything but time."""
    for step in range(1, STEPS + 1):
        assert run.records(step) == other.records(step), f"step {step}"
    assert run.metrics() == other.metrics()
    assert run.weights() == other.weights()


def test_the_undisturbed_run_has_forks_signal_and_every_step(undisturbed: Run):
    for step in range(1, STEPS + 1):
        groups = undisturbed.records(step)
        rollouts = [rollout for group in groups for rollout in group["rollouts"]]
        assert len(groups) == 3 and len(rollouts) == 24
        assert sum(rollout["parent"] is not None for rollout in rollouts) >= 4
        assert len({rollout["reward"] for rollout in rollouts}) > 8
        assert sum(len(rollout["tool_calls"]) for rollout in rollouts) > 24
    assert [line["step"] for line in undisturbed.metrics()] == [0, 1, 2, 3, 4]
    assert sorted(undisturbed.weights()) == [".metadata", "__0_0.distcp", "model", "rank_00000.pt"]


@pytest.mark.parametrize("chain", CHAINS)
def test_a_run_killed_in_every_phase_of_a_step_ends_as_the_undisturbed_one(
    ramet, workspace, undisturbed, tmp_path, chain
):
    save_every, kills = CHAINS[chain]
    command = workspace.train(f"run.root={tmp_path}", "run.name=killed", f"train.save_every={save_every}")
    killed = Run(tmp_path / "killed")
    for kill in kills:
        log = tmp_path / f"{kill}.json"
        ended = ramet(*command, cwd=tmp_path, E2E_KILL=kill, E2E_KILL_LOG=str(log))
        assert ended.code == -9, f"{kill} did not strike: {ended.err}"
        assert log.exists()
        for step in killed.recorded():
            assert killed.records(step) == undisturbed.records(step), f"step {step}, before {kill} struck"
    ended = ramet(*command, cwd=tmp_path)
    assert ended.code == 0, ended.err
    same(killed, undisturbed)
    assert killed.leftovers() == []
    for point in {"first_requests", "generating", "tools", "fork"} & {kill.partition(":")[0] for kill in kills}:
        log = json.loads(next(tmp_path.glob(f"{point}:*.json")).read_text())
        assert len(log["rollouts"]) >= 5, log  # how many had ended by then depends on the machine's load
        assert point != "fork" or any("." in path for path in log["rollouts"]), log


@pytest.mark.parametrize(
    ("latency_s", "max_concurrent"),
    [("0", 16), ("0.4", 16), ("0.05", 8)],
    ids=["instant_tools", "slow_tools", "one_group_at_a_time"],
)
def test_numbers_do_not_depend_on_what_happens_at_the_same_time(
    ramet, workspace, undisturbed, tmp_path, latency_s, max_concurrent
):
    command = workspace.train(f"run.root={tmp_path}", "run.name=other", f"rollout.max_concurrent={max_concurrent}")
    ended = ramet(*command, cwd=tmp_path, E2E_LATENCY_S=latency_s)
    assert ended.code == 0, ended.err
    same(Run(tmp_path / "other"), undisturbed)


def test_the_installed_command_killed_from_outside_goes_on_in_a_new_process(
    environment, workspace, undisturbed, tmp_path
):
    command = [Path(sys.executable).with_name("ramet"), *workspace.train(f"run.root={tmp_path}", "run.name=killed")]
    run = Run(tmp_path / "killed")
    threads_as_it_likes = {key: value for key, value in environment.items() if key != "OMP_NUM_THREADS"}
    where = {"cwd": tmp_path, "env": threads_as_it_likes}
    first = subprocess.Popen(command, **where, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with first:
        while first.poll() is None and not run.recorded():
            time.sleep(0.01)
        first.kill()
    assert first.returncode == -9
    assert not (run.path / "model").exists()
    second = subprocess.run(command, **where, capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    same(run, undisturbed)
