"""Problems of `cluster.*` that are reported before anything starts."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

from ramet.cluster.check import check_cluster
from ramet.config.schema import ClusterConfig, Config
from ramet.engines.config import VllmEngineConfig


def problems(device: str = "auto", **cluster: object) -> list[str]:
    config = Config(cluster=ClusterConfig(**cluster))  # type: ignore[arg-type]
    config.model.device = device
    return check_cluster(config)


def test_defaults_are_fine():
    assert problems() == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"policy_workers": 2}, "cluster.policy_workers=2: cluster.name=local has one of each"),
        ({"rollout_workers": 3}, "cluster.rollout_workers=3: cluster.name=local has one of each"),
        ({"colocate": True}, "cluster.colocate=true: with cluster.name=local"),
        ({"address": "auto"}, "cluster.address=auto: cluster.name=local joins no cluster"),
    ],
)
def test_settings_that_need_ray_are_refused_in_one_process_with_both_keys(settings, expected):
    [problem] = problems(**settings)
    assert problem.startswith(expected) and problem.endswith("set cluster=ray")


@pytest.mark.parametrize(
    ("transfer", "device", "cluster", "expected"),
    [
        (
            "nccl",
            "auto",
            {},
            "engine.params.transfer=nccl: with cluster.name=local weights go through host memory; leave it out, or set "
            "cluster=ray",
        ),
        (
            "nccl",
            "auto",
            {"name": "ray", "colocate": True},
            "engine.params.transfer=nccl: engines share the policy's GPUs (cluster.colocate=true), and NCCL takes each "
            "GPU once; allowed: ipc, host",
        ),
        (
            "ipc",
            "auto",
            {"name": "ray"},
            "engine.params.transfer=ipc: engines have other GPUs (cluster.colocate=false), where the policy's "
            "memory is not; allowed: nccl, host",
        ),
        ("ipc", "cpu", {"name": "ray"}, None),
        ("host", "auto", {}, None),
    ],
)
def test_weights_cannot_be_sent_in_a_way_that_the_placement_forbids(transfer, device, cluster, expected):
    if cluster.get("name") == "ray":
        pytest.importorskip("ray")
    config = Config(cluster=ClusterConfig(**cluster))
    config.model.device = device
    config.engine.params = VllmEngineConfig(transfer=transfer)
    assert check_cluster(config) == ([] if expected is None else [expected])


def test_a_missing_ray_is_reported_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert problems(name="ray") == ['cluster=ray: Ray is not installed; pip install "ramet[ray]"']


def test_workers_that_cannot_share_gpus_are_refused():
    pytest.importorskip("ray")
    assert problems(name="ray", colocate=True) == []
    [problem] = problems("cpu", name="ray", colocate=True)
    assert problem == "cluster.colocate=true: workers take turns on GPUs, and model.device=cpu uses none"
    [problem] = problems(name="ray", colocate=True, policy_workers=4)
    assert "cluster.policy_workers=4 must be cluster.rollout_workers=1 times engine.params.tensor_parallel=1" in problem
    config = Config(cluster=ClusterConfig(name="ray", colocate=True, policy_workers=4, rollout_workers=2))
    config.engine.params = SimpleNamespace(tensor_parallel=2)
    assert check_cluster(config) == []
    config.train.staleness = 1
    [problem] = check_cluster(config)
    assert "train.staleness=1" in problem


def test_an_address_of_rays_client_is_refused():
    pytest.importorskip("ray")
    [problem] = problems(name="ray", address="ray://head:10001")
    assert "give HOST:PORT of the cluster's head" in problem
