"""Which worker sits where: bundles of CPUs and GPUs that Ray reserves before anything starts.

The policy's ranks, with the reference's and the critic's shards, are packed on as few nodes as hold them; engines are
spread. Co-located engines sit in the bundles of the ranks whose GPUs they take turns with.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """One group of like bundles."""

    bundles: int
    cpus: float
    gpus: int
    strategy: str

    @property
    def request(self) -> list[dict[str, float]]:
        one = {"CPU": self.cpus} | ({"GPU": float(self.gpus)} if self.gpus else {})
        return [dict(one) for _ in range(self.bundles)]


class WorkerPlacement:
    """Reserved bundles, until `release`."""

    def __init__(self, config: Config, *, with_policy: bool, is_own: bool) -> None:
        """Decides what is asked for. `is_own`: the cluster is this run's, and does not grow. Raises `ConfigError`."""
        cluster = config.cluster
        self._is_own = is_own
        self._colocate = cluster.colocate and with_policy
        self._ranks = cluster.policy_workers if with_policy else 0
        self._engines = cluster.rollout_workers
        self._per_engine = engine_devices(config)
        self._uses_gpus = _uses_gpus(config)
        if self._colocate and not self._uses_gpus:
            raise ConfigError("cluster.colocate=true: workers take turns on GPUs, and the Ray cluster has none")
        self._cpus = _cpu_share(self._ranks + self._engines, all_of_it=is_own and not self._uses_gpus)
        self._wanted = self._plan()
        self.groups: list[PlacementGroup] = []

    def _plan(self) -> list[SlotRequest]:
        gpus = int(self._uses_gpus)
        if self._colocate:
            cpus = self._cpus * (self._per_engine + 1)
            return [SlotRequest(bundles=self._engines, cpus=cpus, gpus=self._per_engine, strategy="PACK")]
        engines = SlotRequest(bundles=self._engines, cpus=self._cpus, gpus=gpus * self._per_engine, strategy="SPREAD")
        policy = SlotRequest(bundles=self._ranks, cpus=self._cpus, gpus=gpus, strategy="PACK")
        return [policy, engines] if self._ranks else [engines]

    def policy_seat(self, rank: int) -> PlacementSlot:
        bundle = rank // self._per_engine if self._colocate else rank
        return PlacementSlot(self.groups[0], bundle, self._cpus, float(self._uses_gpus))

    def engine_seat(self, number: int) -> PlacementSlot:
        gpus = 0.0 if self._colocate else float(self._uses_gpus * self._per_engine)
        return PlacementSlot(self.groups[-1], number, self._cpus, gpus)

    def shared_ranks(self, number: int) -> range:
        """Ranks whose GPUs a co-located engine uses."""
        return range(number * self._per_engine, (number + 1) * self._per_engine)

    async def reserve(self, timeout_s: float) -> None:
        """Raises `ConfigError` if there is no room, at once if the cluster cannot grow."""
        if any(amount > _total(resource) + 1e-6 for resource, amount in self._asked().items()):
            if self._is_own:
                raise ConfigError(self._no_room("it has less in all"))
            logger.warning("%s; waiting for it to grow", self._no_room("it has less in all"))
        for wanted in self._wanted:  # the policy's first, so that packing finds the emptiest node
            group = placement_group(wanted.request, strategy=wanted.strategy)
            self.groups.append(group)
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.wrap_future(group.ready().future())
            except TimeoutError as error:
                raise ConfigError(self._no_room(f"not free within cluster.timeout_s={timeout_s:g}")) from error

    def release(self) -> None:
        for group in self.groups:
            remove_placement_group(group)
        self.groups.clear()

    def _asked(self) -> dict[str, float]:
        return {
            "GPU": float(sum(wanted.bundles * wanted.gpus for wanted in self._wanted)),
            "CPU": round(sum(wanted.bundles * wanted.cpus for wanted in self._wanted), 2),
        }

    def _no_room(self, why: str) -> str:
        ranks = f"{self._ranks} policy and " if self._ranks else ""
        amounts = ", ".join(
            f"{amount:g} {resource} (the cluster has {_total(resource):g}, {_free(resource):g} of them free)"
            for resource, amount in self._asked().items()
            if amount
        )
        keys = ["cluster.policy_workers"] if self._ranks else []
        keys.append("cluster.rollout_workers")
        if self._per_engine > 1:
            keys.append("engine.params.tensor_parallel")
        turns = "" if self._colocate or not self._uses_gpus or not self._ranks else ", or set cluster.colocate=true"
        return (
            f"cluster: no room for {ranks}{self._engines} rollout workers: they ask for {amounts}; {why}. "
            f"Lower {' or '.join(keys)}{turns}, or give the cluster more nodes"
        )


def _total(resource: str) -> float:
    found: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return found.get(resource, 0.0)


def _free(resource: str) -> float:
    found: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return found.get(resource, 0.0)


def engine_devices(config: Config) -> int:
    """GPUs of one engine."""
    return int(getattr(config.engine.params, "tensor_parallel", 1))


def _uses_gpus(config: Config) -> bool:
    """`model.device=auto` takes a GPU wherever there is one."""
    if config.model.device == "auto":
        return _total("GPU") > 0
    return config.model.device.startswith("cuda")


def _cpu_share(workers: int, *, all_of_it: bool) -> float:
    """CPUs of one worker. Ray only counts them, but torch takes as many threads (at least one) if nothing else says.

    `all_of_it` divides a machine that is ours and computes; otherwise one each, or less before there is none.
    """
    total = _total("CPU")
    share = total / workers if all_of_it else min(1.0, total / (2 * workers))
    return float(math.floor(share)) if share >= 1 else max(0.01, math.floor(100 * share) / 100)
