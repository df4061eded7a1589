"""Placement of workers: bundles of CPUs and GPUs that Ray reserves before anything starts.

The policy's ranks, with the reference's and the critic's shards, are packed on as few nodes as have room for them;
engines are spread. Co-located engines share the bundles of the ranks with whose GPUs they alternate.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from ramet.cluster.check import could_colocate
from ramet.config.schema import Config
from ramet.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacementSlot:
    """A worker's share of one bundle."""

    group: PlacementGroup
    bundle: int
    cpus: float
    gpus: float
    threads: int | None = None  # for its computing; None: as Ray sets it, from `cpus`


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """One group of equal bundles, placed by `strategy` (`PACK` or `SPREAD`)."""

    bundles: int
    cpus: float
    gpus: int
    strategy: str

    @property
    def resources(self) -> list[dict[str, float]]:
        """Resources of each bundle, as Ray wants them."""
        bundle = {"CPU": self.cpus} | ({"GPU": float(self.gpus)} if self.gpus else {})
        return [dict(bundle) for _ in range(self.bundles)]


class WorkerPlacement:
    """Reserved bundles, until `release`."""

    def __init__(self, config: Config, *, with_policy: bool, with_engines: bool = True, is_own: bool) -> None:
        """Plans the bundles. `is_own`: the cluster is this run's, and does not grow. Raises `ConfigError`."""
        cluster = config.cluster
        self._is_own = is_own
        self._colocate = cluster.colocate and with_policy and with_engines
        self._could_colocate = could_colocate(config)
        self._ranks = cluster.policy_workers if with_policy else 0
        self._engines = cluster.rollout_workers if with_engines else 0
        self._per_engine = engine_devices(config)
        self.uses_gpus = _uses_gpus(config)
        if self._colocate and not self.uses_gpus:
            raise ConfigError("cluster.colocate=true: workers take turns on GPUs, and the Ray cluster has none")
        workers = self._ranks + cluster.rollout_workers  # engines that are left out too, as in `_count_threads`
        self._cpus = _cpu_share(workers, whole_machine=is_own and not self.uses_gpus)
        self._requests = self._plan()
        self._threads = config.run.threads or (1 if config.run.deterministic else None)  # as the user says
        self._all_engines = cluster.rollout_workers
        self._rank_threads: list[int] = []
        self.groups: list[PlacementGroup] = []

    def _plan(self) -> list[SlotRequest]:
        gpus = int(self.uses_gpus)
        if self._colocate:
            cpus = self._cpus * (self._per_engine + 1)
            return [SlotRequest(bundles=self._engines, cpus=cpus, gpus=self._per_engine, strategy="PACK")]
        engines = SlotRequest(bundles=self._engines, cpus=self._cpus, gpus=gpus * self._per_engine, strategy="SPREAD")
        policy = SlotRequest(bundles=self._ranks, cpus=self._cpus, gpus=gpus, strategy="PACK")
        return [request for request in (policy, engines) if request.bundles]

    def policy_slot(self, rank: int) -> PlacementSlot:
        """Return the slot of a rank. Call it after `reserve`."""
        return PlacementSlot(
            self.groups[0], self._bundle(rank), self._cpus, float(self.uses_gpus), self._rank_threads[rank]
        )

    def _bundle(self, rank: int) -> int:
        return rank // self._per_engine if self._colocate else rank

    def engine_slot(self, number: int) -> PlacementSlot:
        gpus = 0.0 if self._colocate else float(self.uses_gpus * self._per_engine)
        return PlacementSlot(self.groups[-1], number, self._cpus, gpus)

    def shared_slots(self, number: int) -> range:
        """Slots of the policy whose GPUs a co-located engine uses; the first if it has its own, or without policy."""
        if not self._colocate:
            return range(1)
        return range(number * self._per_engine, (number + 1) * self._per_engine)

    async def reserve(self, timeout_s: float) -> None:
        """Raises `ConfigError` without room, at once if the cluster cannot grow."""
        if any(amount > _total(resource) + 1e-6 for resource, amount in self._requested().items()):
            if self._is_own:
                raise ConfigError(self._no_room("it has less in all"))
            logger.warning("%s; waiting for it to grow", self._no_room("it has less in all"))
        for request in self._requests:  # the policy's first, so that packing finds the emptiest node
            group = placement_group(request.resources, strategy=request.strategy)
            self.groups.append(group)
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.wrap_future(group.ready().future())
            except TimeoutError as error:
                raise ConfigError(self._no_room(f"not free within cluster.timeout_s={timeout_s:g}")) from error
        if self._ranks:
            self._count_threads()

    def _count_threads(self) -> None:
        """How many threads each rank computes with, unless the user says so: the cores of its node, shared equally by
        the workers on it. Engines that are left out count as spread over all nodes: a replay's ranks compute with as
        many threads as its run's ranks, surely on one node.
        """
        nodes = [_nodes_of(group) for group in self.groups]
        cores = {node["NodeID"]: node["Resources"].get("CPU", 0.0) for node in _alive()}
        shares = thread_shares(
            [nodes[0][self._bundle(rank)] for rank in range(self._ranks)],
            nodes[-1] if self._engines else [],
            cores,
            elsewhere=0 if self._engines else math.ceil(self._all_engines / len(cores)),
        )
        self._rank_threads = [self._threads or share for share in shares]
        if self._threads is None and "OMP_NUM_THREADS" not in os.environ:
            logger.info(
                "policy ranks compute with %s threads each, their part of the cores of their nodes (run.threads=null)",
                " to ".join(map(str, sorted({min(shares), max(shares)}))),
            )

    def release(self) -> None:
        for group in self.groups:
            remove_placement_group(group)
        self.groups.clear()

    def _requested(self) -> dict[str, float]:
        return {
            "GPU": float(sum(request.bundles * request.gpus for request in self._requests)),
            "CPU": round(sum(request.bundles * request.cpus for request in self._requests), 2),
        }

    def _no_room(self, why: str) -> str:
        counts = {"policy": self._ranks, "rollout": self._engines}
        who = " and ".join(f"{count} {kind}" for kind, count in counts.items() if count)
        amounts = ", ".join(
            f"{amount:g} {resource} (the cluster has {_total(resource):g}, {_free(resource):g} of them free)"
            for resource, amount in self._requested().items()
            if amount
        )
        return f"cluster: no room for {who} workers: they ask for {amounts}; {why}. {self._advice()}"

    def _advice(self) -> str:
        """Return a sentence that says what can be lowered or set here."""
        counts = {
            "cluster.policy_workers": self._ranks,
            "cluster.rollout_workers": self._engines,
            "engine.params.tensor_parallel": self._per_engine if self._engines else 0,
        }
        lower = " or ".join(key for key, count in counts.items() if count > 1)
        colocate = self.uses_gpus and self._ranks and self._engines and self._could_colocate
        ways = [f"lower {lower}" if lower else "", "set cluster.colocate=true" if colocate else ""]
        text = ", or ".join([*filter(None, ways), "give the cluster more nodes"])
        return text[0].upper() + text[1:]


def thread_shares(
    ranks: Sequence[str], engines: Sequence[str], cores: Mapping[str, float], *, elsewhere: int = 0
) -> list[int]:
    """Threads of each rank. `ranks` and `engines` are their nodes, `cores` by node; `elsewhere` engines more are taken
    to be on every node.
    """
    workers = Counter([*ranks, *engines])
    return [max(1, int(cores[node] / (workers[node] + elsewhere))) for node in ranks]


def _nodes_of(group: PlacementGroup) -> list[str]:
    """The node of each bundle."""
    node_ids: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return [node_ids[bundle] for bundle in sorted(node_ids)]


def _alive() -> list[dict[str, Any]]:
    """The nodes of the cluster."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node for node in nodes if node["Alive"]]


def _total(resource: str) -> float:
    totals: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return totals.get(resource, 0.0)


def _free(resource: str) -> float:
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return free.get(resource, 0.0)


def engine_devices(config: Config) -> int:
    """GPUs of one engine."""
    return int(getattr(config.engine.params, "tensor_parallel", 1))


def _uses_gpus(config: Config) -> bool:
    """`model.device=auto` takes a GPU wherever there is one."""
    if config.model.device == "auto":
        return _total("GPU") > 0
    return config.model.device.startswith("cuda")


def _cpu_share(workers: int, *, whole_machine: bool) -> float:
    """CPUs of one worker. Ray only counts them, but torch uses as many threads (at least one) unless a setting says so.

    `whole_machine` divides all CPUs among the workers, which compute on them; otherwise each has one, or less if there
    are too few.
    """
    total = _total("CPU")
    share = total / workers if whole_machine else min(1.0, total / (2 * workers))
    return float(math.floor(share)) if share >= 1 else max(0.01, math.floor(100 * share) / 100)
