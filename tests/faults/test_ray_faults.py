"""F3, F4, F5, F19, F32 with `cluster=ray`: what a lost worker costs, and what it does not.

The training is in this process, its workers are Ray actors. The undisturbed run is one with `cluster=local`.
"""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray")

import ray

from ramet.cli import main
from ramet.cluster.ray import health_monitor
from ramet.plugins import load_plugins
from ramet.train.replay import run as replay

SETTINGS = [
    "rollout_step=ray_turns", "tools=[ray_tool]", "rollout.group_size=6", "rollout.max_concurrent=18",
    "engine.params.slots=18", "branch_policy=arpo", "branch_policy.params.initial_rollouts=3",
    "branch_policy.params.alpha=0", "branch_policy.params.tau=0", "branch_policy.params.beta=1",
    "rollout.first_tokens=2", "train.kl_coef=0.01", "cluster.timeout_s=300",
]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def ray_plugin(plugin: None, two_cpus: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAMET_PLUGINS", "faults_plugin,ray_plugin")
        load_plugins.cache_clear()
        yield
    load_plugins.cache_clear()


@pytest.fixture(scope="module")
def two_cpus() -> Iterator[None]:
    """This process is connected to Ray, and runs in it borrow the connection."""
    if ray.is_initialized():
        yield
        return
    logging.getLogger("ray").setLevel(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # else Ray writes a token into the home and sets the mode for good
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, object_store_memory=200 << 20,
            configure_logging=False, log_to_driver=False,
        )  # fmt: skip
        yield
        ray.shutdown()


def outcome(workspace: Any, name: str, steps: int) -> dict[str, Any]:
    """What training made: token ids, log-probabilities, rewards and advantages of all steps, metrics, weights."""
    kept = ("step", "reward/", "group/", "train/")
    return {
        "rollouts": [
            (group["segments"], [(r["id"], r["segments"], r["reward"], r["advantages"]) for r in group["rollouts"]])
            for step in range(1, steps + 1)
            for group in workspace.records(name, step)
        ],
        "metrics": [
            {k: v for k, v in line.items() if k.startswith(kept) and not k.endswith(("_s", "_per_s"))}
            for line in workspace.metrics(name)
        ],
        "weights": hashlib.sha256((workspace.runs / name / "model/model.safetensors").read_bytes()).hexdigest(),
    }


def gone() -> bool:
    """Whether no worker is left. Ray ends them in its own time, within a few seconds."""
    ends_at = time.monotonic() + 15
    while (left := actors()) and time.monotonic() < ends_at:
        time.sleep(0.1)
    return not left


def actors() -> list[str]:
    """Titles of the processes of workers."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = entry.read_text()
        except OSError:
            continue
        if re.match("ray::(Policy|Rollout)Actor", title):
            found.append(title)
    return found


def test_killed_and_hanging_rollout_workers_cost_time_and_change_no_number(workspace, tmp_path, monkeypatch, caplog):
    """F4, F5, F32: the first one's engine fails, the second is killed inside a tree, by the tool call of a fork, and
    the third one is stopped.
    """
    monkeypatch.setattr(health_monitor, "SILENCE_S", 3.0)
    workspace.train("undisturbed", *SETTINGS, steps=3)
    played = [rollout for group in workspace.records("undisturbed", 2) for rollout in group["rollouts"]]
    fork = next(r["id"] for r in played if r["parent"] is not None and r["tool_calls"])
    struck = [
        f"tools.ray_tool.params.{key}" for key in (f"folder={tmp_path}", "fail=1/0", f"kill=2/{fork}", "stop=3/1")
    ]
    workspace.train("struck", *SETTINGS, "cluster=ray", *struck, steps=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["struck_SIGKILL", "struck_SIGSTOP", "struck_engine"]
    assert outcome(workspace, "struck", 3) == outcome(workspace, "undisturbed", 3)
    assert [line["rollout/restarts"] for line in workspace.metrics("struck")] == [1, 1, 1]
    assert [line["rollout/rollouts"] for line in workspace.metrics("struck")] == [18, 18, 18]
    lost = [record.message for record in caplog.records if "is lost" in record.message]
    assert len(lost) == 3
    assert re.fullmatch(
        r"the rollout worker with pid \d+ on node [\d.]+ is lost: the torch engine failed: RuntimeError: CUDA error: "
        r"out of memory; replacing it \(1 of at most 3 within 30 minutes\), and its groups are run again",
        lost[0],
    )
    assert "its process ended at once: killed (SIGKILL, out of memory) or crashed" in lost[1]
    assert "it has not answered for 3 s; replacing it (3 of at most 3 within 30 minutes)" in lost[2]
    assert gone()


def test_a_killed_policy_rank_ends_the_job_and_is_named_with_its_cause(workspace, tmp_path, capsys):
    """F3, F19: two ranks, of which the second is killed in the update of step 2."""
    loss = ["policy_loss=ray_loss", f"policy_loss.params.folder={tmp_path}", "policy_loss.params.step=2"]
    more = ["policy_loss.params.rank=1", "cluster=ray", "cluster.policy_workers=2", "run.deterministic=false"]
    overrides = workspace.overrides("killed_rank", *SETTINGS, *loss, *more, steps=3)
    code = main(["train", *overrides])
    ended = time.time()
    struck = tmp_path / "struck_SIGKILL"
    assert ended - struck.stat().st_mtime < 60
    assert code == 2
    [said] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert re.match(
        rf"error: policy rank 1 \(node [\d.]+, pid {struck.read_text()}\) is lost: its process ended at once: killed",
        said,
    )
    assert said.endswith("A policy rank cannot be replaced: resume from the last checkpoint")
    assert [path.name for path in (workspace.runs / "killed_rank/checkpoints").iterdir()] == ["step_000001"]
    assert gone()


def test_groups_that_play_ahead_outlive_a_killed_worker_and_the_run_can_be_replayed(workspace, tmp_path):
    """With `train.staleness`, whose groups are admitted one by one. Engines are left out of the replay."""
    ahead = ("run.deterministic=false", "run.threads=1", "train.staleness=2", "train.keep_checkpoints=9")
    struck = (f"tools.ray_tool.params.folder={tmp_path}", "tools.ray_tool.params.kill=2/0")
    first = workspace.train("ahead", *SETTINGS, *ahead, *struck, "cluster=ray", steps=4)
    lines = workspace.metrics("ahead")
    assert [path.name for path in tmp_path.iterdir()] == ["struck_SIGKILL"]
    assert sum(line["rollout/restarts"] for line in lines) == 1
    assert [line["rollout/rollouts"] for line in lines] == [18, 18, 18, 18]
    assert all(line["train/version_lag_max"] <= 2 for line in lines)
    numbers = [record["number"] for step in range(1, 5) for record in workspace.records("ahead", step)]
    assert numbers == list(range(12))
    replayed = replay(first, ["run.name=ahead_again"])
    assert (replayed.steps, replayed.difference) == (4, 0.0)
    assert gone()
