"""Shares of CPUs, of a cluster whose size is given."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from ramet.cluster.ray import placement
from ramet.cluster.ray.placement import WorkerPlacement
from ramet.config.schema import ClusterConfig, Config, ModelConfig, Offload, PolicyConfig


@pytest.mark.parametrize(
    ("offload", "gpus", "is_own", "cpus"),
    [
        (Offload.NONE, 4, True, 1),
        (Offload.OPTIMIZER, 4, True, 1),
        (Offload.ALL, 4, True, 8),  # the optimiser runs on them
        (Offload.ALL, 4, False, 1),  # another run may be there
        (Offload.NONE, 0, True, 8),
    ],
)
def test_cpus_are_divided_where_something_large_is_computed_on_them(
    monkeypatch: pytest.MonkeyPatch, offload: Offload, gpus: int, is_own: bool, cpus: float
) -> None:
    monkeypatch.setattr(placement, "_total", lambda resource: {"CPU": 32.0, "GPU": float(gpus)}[resource])
    config = Config(
        model=ModelConfig(path="m"),
        policy=PolicyConfig(offload=offload),
        cluster=ClusterConfig(name="ray", policy_workers=2, rollout_workers=2),
    )
    requests = WorkerPlacement(config, with_policy=True, is_own=is_own)._requests
    assert [request.cpus for request in requests] == [cpus, cpus]
