"""What the plan says of the places of engines, and of the threads of policy ranks."""

from __future__ import annotations

import os

import pytest

from ramet.config.schema import ClusterConfig, ComponentConfig, Config, ModelConfig, RunConfig
from ramet.engines.config import VllmEngineConfig
from ramet.planning.placement import Machine, check_placement, machine_of, plan_devices, threads_in_words

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


@pytest.mark.parametrize(
    ("on", "width", "engines", "ranks", "colocate", "room"),
    [
        ("8x8x80GiB", 2, 32, 64, True, None),
        ("8x8x80GiB", 8, 8, 64, True, None),
        ("8x8x80GiB", 16, 4, 64, True, 0),  # no node has 16
        ("64x80GiB", 16, 4, 64, True, None),  # nodes are not known
        ("2x6x80GiB", 4, 3, 12, True, 2),  # two of each node's six are left
        ("8x8x80GiB", 2, 16, 32, False, None),
        ("2x8x80GiB", 2, 6, 3, False, None),  # the ranks leave five of the first node: two engines, and four
        ("2x8x80GiB", 4, 3, 4, False, None),
        ("2x8x80GiB", 4, 3, 3, False, None),
        ("2x8x80GiB", 8, 1, 8, False, None),
        ("2x8x80GiB", 8, 1, 3, False, None),
        ("2x8x80GiB", 6, 2, 3, False, 1),
    ],
)
def test_the_devices_of_an_engine_are_on_one_node(
    on: str, width: int, engines: int, ranks: int, colocate: bool, room: int | None
) -> None:
    config = Config(
        model=ModelConfig(path="."),
        engine=ComponentConfig(name="vllm", params=VllmEngineConfig(tensor_parallel=width)),
        cluster=ClusterConfig(name="ray", policy_workers=ranks, rollout_workers=engines, colocate=colocate),
    )
    machine = machine_of(config, on)
    assert plan_devices(config, machine).n_devices <= (machine.devices or 0)
    found = check_placement(config, machine)
    if room is None:
        assert found == []
    else:
        each = (machine.devices or 0) // (machine.nodes or 1)
        assert len(found) == 1 and f"tensor_parallel={width}: all devices of an engine are on one node" in found[0]
        assert f"of {each} devices here, so there is room for {room} of {engines} engines" in found[0]
