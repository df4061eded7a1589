"""`ramet.cluster.interfaces.Policy` over one actor per rank. All get the same calls; the first rank's result counts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import ObjectRef

from ramet.cluster.check import shards_over_nodes
from ramet.cluster.ray.actor_base import PolicySetup
from ramet.cluster.ray.actors import PolicyActor
from ramet.cluster.ray.weights import Bucket
from ramet.cluster.ray.worker import RayWorker, WorkerLost
from ramet.cluster.ray.worker_pool import WorkerPool
from ramet.policy.batching.rows import Floats, Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.progress import PassProgress
from ramet.policy.spec import CriticSpec, PolicySpec

logger = logging.getLogger(__name__)
SETTLE_S = 5.0  # for the other ranks to end, once one has failed: the cause may be another's death


class RayPolicy:
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
        self._rows: tuple[Sequence[Row], ObjectRef[Any]] | None = None
        self._batch: tuple[TrainBatch, ObjectRef[Any]] | None = None

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
            *(worker.call("take_rank", rank, timeout_s=timeout_s) for rank, worker in enumerate(self.ranks))
        )
        address = await self.ranks[0].call("rendezvous", timeout_s=timeout_s) if len(self.ranks) > 1 else None
        await self._call_all("start", address)

    def ranks_beside(self, engine: int) -> list[int]:
        """The ranks on whose GPUs a co-located engine is; the first of them if it has GPUs of its own."""
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

    async def logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        return _copied(await self._compute("logprobs", self._put(rows)))

    async def logprobs_and_entropies(self, rows: Sequence[Row]) -> tuple[list[Floats], list[Floats]]:
        logprobs, entropies = await self._compute("logprobs_and_entropies", self._put(rows))
        return _copied(logprobs), _copied(entropies)

    async def reference_logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        return _copied(await self._compute("reference_logprobs", self._put(rows)))

    async def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        return await self._train("update", batch, step)

    async def values(self, rows: Sequence[Row]) -> list[Floats]:
        return _copied(await self._compute("values", self._put(rows)))

    async def update_critic(self, batch: TrainBatch, step: int) -> dict[str, float]:
        return await self._train("update_critic", batch, step)

    async def weights(self) -> list[ObjectRef[Bucket]]:
        """Buckets in the object store, owned by the first rank."""
        found: list[ObjectRef[Bucket]] = await self._compute("weights")
        return found

    async def open_weights(self, writers: frozenset[int]) -> None:
        """Begin to stream the weights to engines on the devices of these ranks."""
        await self._call_all("open_weights", writers)

    async def next_weights(self) -> list[dict[str, Any] | None]:
        """By rank, what its engine is to receive; None: everything was given, or its replica has none to give to."""
        return await self._pool.unless_failed(self._gather("next_weights", ()), policy=True)

    async def weight_shapes(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Names, types and shapes of what `broadcast_weights` sends."""
        found: list[tuple[str, str, tuple[int, ...]]] = await self._call_all("weight_shapes")
        return found

    async def rendezvous(self) -> str:
        """An address on the first rank's node, with a port that is free now."""
        found: str = await self.ranks[0].call("rendezvous", timeout_s=self._pool.timeout_s)
        return found

    async def connect_engines(self, options: Mapping[str, Any]) -> None:
        """Returns when the workers of all engines have joined."""
        await self._call_all("connect_engines", options)

    async def broadcast_weights(self) -> None:
        """To the workers of all engines, which must have been told to receive them."""
        await self._call_all("broadcast_weights")

    async def weights_beside_engines(self) -> list[ObjectRef[Bucket]]:
        """As `weights`, while co-located engines run, which need the memory again."""
        found: list[ObjectRef[Bucket]] = await self._call_all("weights")
        await self.rest()
        return found

    def progress(self) -> PassProgress | None:
        found = self.ranks[0].progress if self.ranks else None
        return found if isinstance(found, PassProgress) else None

    async def rest(self) -> None:
        """All ranks give back the device memory that they do not use, for engines on the same devices."""
        await self._call_all("rest")

    async def stage(self) -> None:
        await self._call_all("stage")

    def write_staged(self, folder: Path) -> None:
        asyncio.run_coroutine_threadsafe(self._call_all("write_staged", folder), self._loop).result()

    async def load(self, folder: Path) -> None:
        """Co-located engines sleep, as an optimiser that is offloaded is read on the device."""
        await self._compute("load", folder)

    async def export(self, folder: Path) -> None:
        await self._call_all("export", folder)

    async def _train(self, method: str, batch: TrainBatch, step: int) -> dict[str, float]:
        """The batch travels without its rows, which the ranks have, or get, as those of the other calls."""
        if self._batch is None or self._batch[0] is not batch:
            self._batch = batch, ray.put(replace(batch, rows=()))
        metrics: dict[str, float] = await self._compute(method, self._batch[1], self._put(batch.rows), step)
        return metrics

    def _put(self, rows: Sequence[Row]) -> ObjectRef[Any]:
        """One copy for all ranks, and for all calls in a row on the same rows."""
        if self._rows is None or self._rows[0] is not rows:
            self._rows = rows, ray.put(rows)
        return self._rows[1]

    async def _compute(self, method: str, *arguments: Any) -> Any:
        if self.before_compute is not None:
            await self.before_compute()
        self.updates += method in ("update", "load")  # after it: engines that start get the weights of before
        return await self._call_all(method, *arguments)

    async def _call_all(self, method: str, *arguments: Any) -> Any:
        """The first rank's result, once all have returned. Raises the cause of a rank's death, or a rank's error."""
        return (await self._pool.unless_failed(self._gather(method, arguments), policy=True))[0]

    async def _gather(self, method: str, arguments: tuple[Any, ...]) -> list[Any]:
        """By rank."""
        calls = [
            asyncio.create_task(
                rank.call(method, *arguments, timeout_s=self._pool.timeout_s), name=f"{method} of {rank}"
            )
            for rank in self.ranks
        ]
        try:
            _, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if waiting:
                await asyncio.wait(waiting, timeout=SETTLE_S)
            failed = [error for call in calls if call.done() and (error := call.exception()) is not None]
            if failed:
                raise next((_fatal(error) for error in failed if isinstance(error, WorkerLost)), failed[0])
            return [call.result() for call in calls]
        finally:
            for call in calls:
                call.cancel()


def _place(worker: RayWorker) -> tuple[str, list[int]]:
    """Node and GPU: neighbouring ranks, which may share sequences, are on one node. Ray promises no order of slots."""
    assert worker.process is not None, "not started"
    return worker.process.node, [int(device) for device in worker.process.devices if device.isdecimal()]


def _fatal(error: WorkerLost) -> WorkerLost:
    """With a hint: the rank's shard of weights and optimiser is lost with it."""
    return WorkerLost(f"{error}. A policy rank cannot be replaced: resume from the last checkpoint")


def _copied(arrays: list[Floats]) -> list[Floats]:
    """Ray's arrays are views of read-only memory, which is not freed as long as they exist."""
    return [array.copy() for array in arrays]
