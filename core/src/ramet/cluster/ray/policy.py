"""`ramet.cluster.interfaces.Policy` over one actor per rank. All are called with all rows; the first one answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import ObjectRef

from ramet.cluster.ray.actors import PolicyActor
from ramet.cluster.ray.errors import WorkerLost
from ramet.cluster.ray.jobs import PolicyJob
from ramet.cluster.ray.weights import Bucket
from ramet.cluster.ray.worker import RayWorker
from ramet.cluster.ray.worker_pool import WorkerPool
from ramet.policy.batching.batch import Floats, Row
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.spec import CriticSpec, PolicySpec

SETTLE_S = 5.0  # for the other ranks to end, once one has failed: the cause may be another's death


class RayPolicy:
    """`before` is awaited before anything is computed: co-located engines make room then."""

    def __init__(self, crew: WorkerPool, spec: PolicySpec, critic: CriticSpec | None) -> None:
        self.ranks: list[RayWorker] = []
        self.before: Callable[[], Awaitable[None]] | None = None
        self._crew = crew
        self._spec = spec
        self._critic = critic
        self._loop = asyncio.get_running_loop()
        self._shared: tuple[Sequence[Row] | TrainBatch, ObjectRef[Any]] | None = None

    async def open(self) -> None:
        """Start all ranks and let them meet."""
        timeout_s = self._crew.timeout_s
        self.ranks = [self._hire(rank) for rank in range(self._crew.config.cluster.policy_workers)]
        await asyncio.gather(*(rank.meet(timeout_s) for rank in self.ranks))
        address = await self.ranks[0].call("address", timeout_s=timeout_s) if len(self.ranks) > 1 else None
        await self._all("start", address)

    def _hire(self, rank: int) -> RayWorker:
        job = PolicyJob(
            run=self._crew.config.run,
            timeout_s=self._crew.timeout_s,
            spec=self._spec,
            critic=self._critic,
            rank=rank,
            world_size=self._crew.config.cluster.policy_workers,
        )
        seat = self._crew.placement.policy_seat(rank)
        return self._crew.hire(PolicyActor, f"policy rank {rank}", seat, job, self._lost)

    def _lost(self, worker: RayWorker, error: WorkerLost) -> None:
        self._crew.fail(_fatal(error))

    async def logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        return _own(await self._compute("logprobs", self._put(rows)))

    async def reference_logprobs(self, rows: Sequence[Row]) -> list[Floats]:
        return _own(await self._compute("reference_logprobs", self._put(rows)))

    async def update(self, batch: TrainBatch, step: int) -> dict[str, float]:
        metrics: dict[str, float] = await self._compute("update", self._put(batch), step)
        return metrics

    async def values(self, rows: Sequence[Row]) -> list[Floats]:
        return _own(await self._compute("values", self._put(rows)))

    async def update_critic(self, batch: TrainBatch, step: int) -> dict[str, float]:
        metrics: dict[str, float] = await self._compute("update_critic", self._put(batch), step)
        return metrics

    async def weights(self) -> list[ObjectRef[Bucket]]:
        """In the object store; their owner is the first rank."""
        found: list[ObjectRef[Bucket]] = await self._compute("weights")
        return found

    async def stage(self) -> None:
        await self._all("stage")

    def write_staged(self, folder: Path) -> None:
        asyncio.run_coroutine_threadsafe(self._all("write_staged", folder), self._loop).result()

    async def load(self, folder: Path) -> None:
        await self._all("load", folder)

    async def export(self, folder: Path) -> None:
        await self._all("export", folder)

    def _put(self, shared: Sequence[Row] | TrainBatch) -> ObjectRef[Any]:
        """One copy for all ranks, and for all calls in a row on the same rows or the same batch."""
        if self._shared is None or self._shared[0] is not shared:
            self._shared = shared, ray.put(shared)
        return self._shared[1]

    async def _compute(self, method: str, *arguments: Any) -> Any:
        if self.before is not None:
            await self.before()
        return await self._all(method, *arguments)

    async def _all(self, method: str, *arguments: Any) -> Any:
        """The first rank's answer, once all have answered. Raises what the first to fail died of, or raised."""
        return await self._crew.unless_failed(self._gather(method, arguments))

    async def _gather(self, method: str, arguments: tuple[Any, ...]) -> Any:
        calls = [
            asyncio.create_task(
                rank.call(method, *arguments, timeout_s=self._crew.timeout_s), name=f"{method} of {rank}"
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
            return calls[0].result()
        finally:
            for call in calls:
                call.cancel()


def _fatal(error: WorkerLost) -> WorkerLost:
    """A rank's shard of weights and optimiser is gone with it."""
    return WorkerLost(f"{error}. A policy rank cannot be replaced: resume from the last checkpoint")


def _own(arrays: list[Floats]) -> list[Floats]:
    """Ray's are views of memory that nobody may write to, and that stays taken as long as they live."""
    return [array.copy() for array in arrays]
