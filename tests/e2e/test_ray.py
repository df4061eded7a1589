"""`ramet train cluster=ray` as a command: the numbers of one process, killed or not, and nothing left."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ramet.rollout.record import read_records, record_line
from ramet.train.recording import record_path

pytest.importorskip("ray")

STEPS = 4
PLUGINS = {"RAMET_PLUGINS": "e2e_plugin,e2e_ray_plugin"}
MARK = "E2E_COMMAND"  # in the environment of a command, and so of all that it starts
GONE_S = 30.0


def left_by(command: Command) -> list[str]:
    """Processes with the command's mark, or with a file open in the folder of a Ray cluster that it started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{MARK}={command.mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
            if marked or any(f"_{command.pid}/logs/" in os.readlink(one) for one in (entry / "fd").iterdir()):
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def gone(command: Command, *, within_s: float) -> None:
    ends_at = time.monotonic() + within_s
    while left := left_by(command):
        assert time.monotonic() < ends_at, f"{within_s:g} s later there are still {left}"
        time.sleep(0.2)


@dataclass(frozen=True)
class Command:
    pid: int
    mark: str
    code: int
    out: str
    err: str


def metrics(folder: Path) -> list[dict[str, float]]:
    kept = (
        "step",
        "reward/",
        "group/",
        "train/",
        "critic/",
        "valid/",
        "rollout/stop/",
        "rollout/turns",
        "rollout/tool",
    )
    return [
        {k: v for k, v in json.loads(line).items() if k.startswith(kept) and not k.endswith(("_s", "_per_s"))}
        for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]


def recorded(folder: Path, step: int) -> list[dict[str, Any]]:
    """The groups of a step as they are written, whichever form the record has."""
    return [json.loads(record_line(record)) for record in read_records(record_path(folder, step))]


def outcome(folder: Path) -> dict[str, Any]:
    """What training made: token ids, rewards and advantages of all steps, metrics, weights."""
    return {
        "rollouts": [
            (group["segments"], [(r["id"], r["segments"], r["reward"], r["advantages"]) for r in group["rollouts"]])
            for step in range(1, STEPS + 1)
            for group in recorded(folder, step)
        ],
        "metrics": metrics(folder),
        "weights": hashlib.sha256((folder / "model/model.safetensors").read_bytes()).hexdigest(),
    }


@pytest.fixture
def train(ramet, workspace, tmp_path):
    """Runs `ramet train` in this test's folder to its end."""

    def train(name: str, *more: str, **env: str) -> Command:
        mark = uuid.uuid4().hex
        command = workspace.train(f"run.root={tmp_path}", f"run.name={name}", "policy_loss=e2e_gradient", *more)
        running = ramet.start(*command, cwd=tmp_path, **PLUGINS, **env, **{MARK: mark})
        ended = running.wait()
        return Command(running.pid, mark, ended.code, ended.out, ended.err)

    return train


def test_a_run_whose_driver_is_killed_in_the_update_and_stopped_later_ends_as_one_in_a_single_process(train, tmp_path):
    """F1, F20, F28. The workers score their groups and make their rows: the driver has no tokens."""
    assert train("local").code == 0
    struck = tmp_path / "struck"
    ended = train("ray", "cluster=ray", E2E_KILL_DRIVER=f"3:{struck}")
    assert (ended.code, struck.exists()) == (-9, True), ended.err
    gone(ended, within_s=GONE_S)
    assert [path.name for path in (tmp_path / "ray/checkpoints").glob("step*")] == ["step_000002"]
    signal = {"E2E_KILL": "scored:4", "E2E_SIGNAL": "SIGTERM", "E2E_KILL_LOG": str(tmp_path / "log")}
    ended = train("ray", "cluster=ray", **signal)
    assert ended.code == 143, ended.err
    assert "Traceback" not in ended.err, ended.err
    assert "\x1b" not in ended.err + ended.out
    assert "(raylet)" not in ended.err + ended.out
    assert ended.err.splitlines()[-1] == "stopped by SIGTERM"
    assert left_by(ended) == []
    (scorers := tmp_path / "scorers").mkdir()
    ended = train("ray", "cluster=ray", E2E_SCORERS=str(scorers))
    assert ended.code == 0, ended.err
    assert left_by(ended) == []
    assert {int(path.name) for path in scorers.iterdir()} - {ended.pid}, "the driver scores validations only"
    assert outcome(tmp_path / "ray") == outcome(tmp_path / "local")


@pytest.fixture
def address() -> Iterator[str]:
    """Of a cluster of two nodes that runs."""
    from ray.cluster_utils import Cluster

    logging.getLogger("ray").setLevel(logging.ERROR)
    node = {"num_cpus": 2, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    yield cluster.address
    cluster.shutdown()


def test_two_ranks_and_two_engines_in_a_cluster_that_runs_take_the_same_first_step_as_one_process(
    train, tmp_path, address
):
    """With a critic and a reference. The cluster is left as it was found, also by a driver that is killed."""
    no_forks = "branch_policy.params.initial_rollouts=8"
    no_validation = ["data.valid=[]", "train.eval_every=0", "train.eval_first=false"]
    more = ["run.deterministic=false", no_forks, "advantage=gae", "train.steps=2", *no_validation]
    assert train("local", *more).code == 0
    there = ["cluster=ray", f"cluster.address={address}", "cluster.policy_workers=2", "cluster.rollout_workers=2"]
    start = {"E2E_KILL": "start:0", "E2E_KILL_LOG": str(tmp_path / "log")}
    ended = train("ray", *more, *there[:2], **start)
    assert ended.code == -9, ended.err
    gone(ended, within_s=GONE_S)
    ended = train("ray", *more, *there)
    assert ended.code == 0, ended.err
    gone(ended, within_s=5.0)
    [here, _], [on_ray, _] = metrics(tmp_path / "local"), metrics(tmp_path / "ray")
    assert on_ray["train/loss"] == pytest.approx(here["train/loss"], abs=1e-5)
    assert on_ray["train/grad_norm"] == pytest.approx(here["train/grad_norm"], rel=1e-4)
    assert on_ray["reward/mean"] == here["reward/mean"]
    assert on_ray["critic/loss"] == pytest.approx(here["critic/loss"], abs=1e-5)
