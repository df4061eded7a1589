"""Checks of `cluster.*` before anything starts, without importing Ray."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence

from ramet.config.schema import ClusterConfig, Config
from ramet.errors import MissingHere


def check_cluster(config: Config) -> list[str]:
    """Problems of the chosen backend with this machine and with the other settings."""
    if config.cluster.name == "local":
        return [*_local(config.cluster), *_local_transfer(config)]
    # Other names are refused with the configuration.
    return [*_ray(config), *_transfer(config)] if config.cluster.name == "ray" else []


def _local(cluster: ClusterConfig) -> Iterator[str]:
    for key in ("policy_workers", "rollout_workers"):
        if (workers := getattr(cluster, key)) > 1:
            yield f"cluster.{key}={workers}: cluster.name=local has one of each in this process; set cluster=ray"
    if cluster.colocate:
        yield "cluster.colocate=true: with cluster.name=local all is in one process already; set cluster=ray"
    if cluster.address is not None:
        yield f"cluster.address={cluster.address}: cluster.name=local joins no cluster; set cluster=ray"


def _ray(config: Config) -> Iterator[str]:
    if importlib.util.find_spec("ray") is None:
        yield MissingHere(
            'cluster=ray: Ray is not installed; pip install "ramet[ray]"',
            missing="Ray",
            unchecked="its version, and whether a cluster has room for the workers",
        )
    address = config.cluster.address
    if address is not None and address.startswith("ray://"):
        yield (
            f"cluster.address={address}: Ray's client protocol is not supported; give HOST:PORT of the cluster's head, "
            "or auto on one of its nodes"
        )
    if config.cluster.colocate:
        yield from _colocated(config)


def _local_transfer(config: Config) -> Iterator[str]:
    if (transfer := getattr(config.engine.params, "transfer", None)) not in (None, "host"):
        yield (
            f"engine.params.transfer={transfer}: with cluster.name=local weights go through host memory; leave it out, "
            "or set cluster=ray"
        )


def _transfer(config: Config) -> Iterator[str]:
    transfer, colocate = getattr(config.engine.params, "transfer", None), config.cluster.colocate
    if transfer == "nccl" and colocate:
        yield (
            "engine.params.transfer=nccl: engines share the policy's GPUs (cluster.colocate=true), and NCCL takes each "
            "GPU once; allowed: ipc, host"
        )
    if transfer == "ipc" and not colocate and config.model.device != "cpu":
        yield (
            "engine.params.transfer=ipc: engines have other GPUs (cluster.colocate=false), where the policy's "
            "memory is not; allowed: nccl, host"
        )


def chosen_transfer(config: Config, *, cuda: bool) -> str:
    """How new weights reach the engines: host, ipc or nccl, as `engine.params.transfer` says or by placement.

    Engines without the option take them from host memory.
    """
    wanted: str | None = getattr(config.engine.params, "transfer", "host")
    if wanted is not None or config.cluster.name == "local" or not cuda:
        return wanted or "host"
    return "ipc" if config.cluster.colocate else "nccl"


def shards_over_nodes(config: Config, nodes: Sequence[object]) -> str:
    """A message if ranks that share a copy of the weights are on several nodes; otherwise empty.

    `nodes`: each rank's node, by rank.
    """
    ranks, replicas = len(nodes), config.policy.replicas
    if ranks % replicas or not _spans(nodes, replicas):
        return ""
    unit = config.policy.sequence_parallel
    finer = (n for n in range(replicas + 1, ranks) if ranks % n == 0 and ranks // n % unit == 0)
    inside = next((n for n in finer if not _spans(nodes, n)), None)
    advice = f"; policy.replicas={inside} keeps that inside nodes, where memory suffices" if inside else ""
    return (
        f"policy.replicas={replicas}: the {ranks // replicas} policy ranks that share a copy of the weights are on "
        f"several nodes, so every block is gathered over the network in each pass{advice}"
    )


def _spans(nodes: Sequence[object], replicas: int) -> bool:
    size = len(nodes) // replicas
    return any(len(set(nodes[first : first + size])) > 1 for first in range(0, len(nodes), size))


def could_colocate(config: Config) -> bool:
    """Whether `cluster.colocate=true` would be accepted, and is not set already."""
    return config.cluster.name == "ray" and not config.cluster.colocate and not list(_colocated(config))


def _colocated(config: Config) -> Iterator[str]:
    cluster, device = config.cluster, config.model.device
    if device == "cpu":
        yield "cluster.colocate=true: workers take turns on GPUs, and model.device=cpu uses none"
    if config.train.staleness:
        yield (
            f"cluster.colocate=true: engines sleep during the update, and train.staleness={config.train.staleness} "
            "needs them at that time; set one of the two"
        )
    devices = getattr(config.engine.params, "tensor_parallel", 1)
    if cluster.policy_workers != cluster.rollout_workers * devices:
        yield (
            f"cluster.colocate=true: engines use the GPUs of policy workers, so cluster.policy_workers="
            f"{cluster.policy_workers} must be cluster.rollout_workers={cluster.rollout_workers} times "
            f"engine.params.tensor_parallel={devices}"
        )
