"""What the plan says of the threads of policy ranks."""

from __future__ import annotations

import os

import pytest

from ramet.config.schema import ClusterConfig, Config, ModelConfig, RunConfig
from ramet.planning.placement import Machine, threads_in_words

HERE = Machine(cuda=False, devices=1, device_bytes=None)
ELSEWHERE = Machine(cuda=True, devices=8, device_bytes=80 << 30, written="8x80GiB")
RAY = ClusterConfig(name="ray", policy_workers=2, rollout_workers=2)


@pytest.mark.parametrize(
    ("run", "cluster", "machine", "variable", "expected"),
    [
        (RunConfig(), ClusterConfig(), HERE, None, ""),
        (RunConfig(), RAY, HERE, None, "4 of a policy rank (16 cores, 4 workers; run.threads=null)"),
        (RunConfig(), RAY, HERE, "2", "2 of a policy rank (OMP_NUM_THREADS)"),
        (RunConfig(threads=6), RAY, HERE, "2", "6 of a policy rank (run.threads)"),
        (RunConfig(deterministic=True), RAY, HERE, None, "1 of a policy rank (run.deterministic=true)"),
        (
            RunConfig(),
            RAY,
            ELSEWHERE,
            None,
            "of a policy rank its part of its node's cores, equal for all workers there (run.threads=null)",
        ),
    ],
)
def test_the_plan_says_how_many_threads_a_policy_rank_has(
    run: RunConfig,
    cluster: ClusterConfig,
    machine: Machine,
    variable: str | None,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    config = Config(model=ModelConfig(path="."), run=run, cluster=cluster)
    assert threads_in_words(config, machine) == expected
