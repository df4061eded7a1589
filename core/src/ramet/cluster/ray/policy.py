"""`ramet.cluster.interfaces.Ranks` over one actor per rank. All get the same calls; the first rank's result counts."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import ray
from ray import ObjectRef

from ramet.cluster.check import shards_over_nodes
from ramet.cluster.ray.actor_base import PolicySetup
from ramet.cluster.ray.actors import PolicyActor
from ramet.cluster.ray.worker import RayWorker, WorkerLost
from ramet.cluster.ray.worker_pool import WorkerPool
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.checkpoint.store import verify_part
from ramet.policy.progress import PassProgress
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import CriticSpec, PolicySpec

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")
SETTLE_S = 5.0  # for the other ranks to end, once one has failed
READS_FILES = frozenset({"verify"})  # takes as long as the file system does
CHANGES_WEIGHTS = frozenset({"update", "update_taken", "load"})
# What needs the memory of co-located engines. `load`: an optimiser that is offloaded is read on the device.
COMPUTES = frozenset(
    {
        "logprobs",
        "logprobs_and_entropies",
        "reference_logprobs",
        "add_reference_logprobs",
        "rescore",
        "values",
        "update",
        "update_taken",
        "update_critic",
        "load",
    }
)


class RayRanks:
    """`before_compute` is awaited before anything is computed, so that co-located engines free their memory."""

    def __init__(self, pool: WorkerPool, spec: PolicySpec, critic: CriticSpec | None) -> None:
        self.ranks: list[RayWorker] = []
        self.ranks_of_slots: list[int] = []  # by slot, the rank of the worker in it
        self.updates = 0  # of the policy, begun
        self.before_compute: Callable[[], Awaitable[None]] | None = None
        self._pool = pool
        self._spec = spec
        self._critic = critic
        self._loop = asyncio.get_running_loop()
        self._stored: tuple[object, ObjectRef[Any]] | None = None  # the last rows or batch that was put

    async def open(self) -> None:
        """Start all ranks and connect them to each other."""
        timeout_s = self._pool.timeout_s
        slots = [self._start_worker(slot) for slot in range(self._pool.config.cluster.policy_workers)]
        await asyncio.gather(*(worker.wait_started(timeout_s) for worker in slots))
        self.ranks = sorted(slots, key=_place)
        self.ranks_of_slots = [self.ranks.index(worker) for worker in slots]
        for rank, worker in enumerate(self.ranks):
            worker.name = f"policy rank {rank}"
        if warning := shards_over_nodes(self._pool.config, [_place(worker)[0] for worker in self.ranks]):
            logger.warning("%s", warning)
        await asyncio.gather(
            *(worker.call(timeout_s, PolicyActor.take_rank, rank) for rank, worker in enumerate(self.ranks))
        )
        address = await self.rendezvous() if len(self.ranks) > 1 else None
        await self.call(PolicyActor.start, address)

    def ranks_beside(self, engine: int) -> list[int]:
        """The ranks on whose GPUs a co-located engine is; the first of them if it has other GPUs."""
        return [self.ranks_of_slots[slot] for slot in self._pool.placement.shared_slots(engine)]

    def _start_worker(self, slot: int) -> RayWorker:
        setup = PolicySetup(
            run=self._pool.config.run,
            timeout_s=self._pool.timeout_s,
            spec=self._spec,
            critic=self._critic,
            world_size=self._pool.config.cluster.policy_workers,
        )
        place = self._pool.placement.policy_slot(slot)
        return self._pool.start(PolicyActor, f"policy rank {slot}", place, setup, self._on_lost)

    def _on_lost(self, worker: RayWorker, error: WorkerLost) -> None:
        self._pool.fail(_fatal(error), policy=True)

    async def call(
        self, function: Callable[Concatenate[PolicyActor, P], T], *arguments: P.args, **named: P.kwargs
    ) -> T:
        """Call a method of `PolicyActor` on all ranks; returns what the first does, once all have returned."""
        return (await self.call_each(function, *arguments, **named))[0]

    async def call_each(
        self, function: Callable[Concatenate[PolicyActor, P], T], *arguments: P.args, **named: P.kwargs
    ) -> list[T]:
        """Return what each rank does. Raises the cause of a rank's death, or a rank's error."""
        assert not named, "arguments are given by their positions"
        method = function.__name__
        timeout_s = math.inf if method in READS_FILES else self._pool.timeout_s  # the monitor finds a dead rank
        if method in COMPUTES and self.before_compute is not None:
            await self.before_compute()
        self.updates += method in CHANGES_WEIGHTS  # after it: engines that start get the weights of before
        sent, called = [self._once(argument) for argument in arguments], cast(Callable[..., T], function)
        calls = [
            asyncio.create_task(rank.call(timeout_s, called, *sent), name=f"{method} of {rank}") for rank in self.ranks
        ]
        try:
            await self._pool.unless_failed(_settled(calls), policy=True)
            failed = [error for call in calls if call.done() and (error := call.exception()) is not None]
            if failed:
                raise next((_fatal(error) for error in failed if isinstance(error, WorkerLost)), failed[0])
            return [_copied(call.result()) for call in calls]
        finally:
            for call in calls:
                call.cancel()

    def _once(self, argument: object) -> object:
        """Rows and batches as one copy in the object store for all ranks, and for all calls in a row with them."""
        if not isinstance(argument, TrainBatch | list):
            return argument
        if self._stored is None or self._stored[0] is not argument:
            self._stored = None  # the store need not have room for both
            self._stored = argument, ray.put(argument)
        return self._stored[1]

    async def rendezvous(self) -> str:
        """Return an address on the first rank's node, with a port that is free now."""
        return await self.ranks[0].call(self._pool.timeout_s, PolicyActor.rendezvous)

    def write_staged(self, folder: Path) -> None:
        asyncio.run_coroutine_threadsafe(self.call(PolicyRank.write_staged, folder), self._loop).result()

    def verify(self, folder: Path) -> list[str]:
        by_ranks = asyncio.run_coroutine_threadsafe(self.call_each(PolicyActor.verify, folder), self._loop)
        own = verify_part(folder, None, len(self.ranks))
        found = itertools.chain(own, *by_ranks.result())
        return sorted(set(found))  # a manifest that cannot be read is found by all

    def progress(self) -> PassProgress | None:
        progress = self.ranks[0].progress if self.ranks else None
        return progress if isinstance(progress, PassProgress) else None


async def _settled(calls: Collection[asyncio.Task[Any]]) -> None:
    """Wait until all have returned; if one fails, wait shortly for the others: the cause may be another's death."""
    _, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
    if waiting:
        await asyncio.wait(waiting, timeout=SETTLE_S)


def _place(worker: RayWorker) -> tuple[str, list[int]]:
    """Node and GPU: neighbouring ranks, which may share sequences, are on one node. Ray promises no order of slots."""
    assert worker.process is not None, "not started"
    return worker.process.node, [int(device) for device in worker.process.devices if device.isdecimal()]


def _fatal(error: WorkerLost) -> WorkerLost:
    """Return the error with a hint: the rank's shard of weights and optimiser is lost with it."""
    return WorkerLost(f"{error}. A policy rank cannot be replaced: resume from the last checkpoint")


def _copied(result: Any) -> Any:
    """Copy the arrays: Ray's are views of read-only memory, which is not freed as long as they exist."""
    if isinstance(result, np.ndarray):
        return result.copy()
    return type(result)(map(_copied, result)) if isinstance(result, list | tuple) else result
