"""`algorithm=arpo_release` under Ray: each worker's share of a step is one lockstep batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ramet.rollout.record import read_records
from ramet.train.recording import record_path

pytest.importorskip("ray")
pytest.importorskip("ramet_release")


def test_two_steps_are_trained_by_two_workers(ramet, workspace, tmp_path: Path) -> None:
    keys = [
        "algorithm=arpo_release", f"run.root={tmp_path}", "run.name=release", f"model.path={workspace.model}",
        f"data.train=[{workspace.folder / 'tasks.jsonl'}]", "data.max_prompt_tokens=32", "tools=[e2e_digest]",
        "rewards=[e2e_even]", "rollout_step.system_prompt=never", "cluster=ray", "cluster.rollout_workers=2",
        "rollout.group_size=4", "rollout.max_concurrent=16", "rollout.max_response_tokens=60", "train.steps=2",
        "train.tasks_per_step=4", "train.minibatches=2", "policy.lr=0.001", "model.device=cpu",
    ]  # fmt: skip
    ended = ramet("train", *keys, cwd=tmp_path)
    assert ended.code == 0, ended.err
    lines = [json.loads(line) for line in (tmp_path / "release/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(line["train/grad_norm"] > 0 and line["rollout/filled_per_group"] > 0 for line in lines)
    for step in (1, 2):
        sizes = [len(record.group.rollouts) for record in read_records(record_path(tmp_path / "release", step))]
        assert sizes == [4] * 4
