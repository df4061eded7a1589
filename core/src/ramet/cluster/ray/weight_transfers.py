"""The three ways in which an update's weights reach the engines, behind one interface; `choose` takes one by placement.

- `host`: the policy's first rank puts them into Ray's object store, and engines read them there. Works everywhere, and
  keeps them for engines that start later.
- `ipc`: engines share GPUs with ranks (`cluster.colocate`): each rank hands chunks that it has gathered to the engine
  on its GPU, where nothing leaves the device. On a CPU, memory that processes of one machine share.
- `nccl`: engines have other GPUs: the first rank broadcasts to all their workers. On a CPU, gloo.

With the last two an engine that starts later is sent the weights through the object store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ray import ObjectRef

from ramet.cluster.check import chosen_transfer
from ramet.cluster.ray.actors import PolicyActor, RolloutActor
from ramet.cluster.ray.placement import engine_devices
from ramet.cluster.ray.policy import RayRanks
from ramet.cluster.ray.weights import Bucket
from ramet.cluster.ray.worker import RayWorker, WorkerLost
from ramet.cluster.ray.worker_pool import run_together
from ramet.config.schema import Config
from ramet.engines.weight_chunks import CHUNK_BYTES
from ramet.errors import InfraError

OnLost = Callable[[RayWorker, InfraError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An engine that is sent weights, and its number."""

    worker: RayWorker
    number: int


class WeightTransfer(Protocol):
    """Sends the policy's current weights."""

    async def prepare(self) -> None:
        """Do what can be done before engines have room for weights."""
        ...

    async def send(self, targets: Sequence[Target], version: int, on_lost: OnLost) -> None:
        """Transfer to all of these; `on_lost` gets those that are lost meanwhile. Raises `InfraError`."""
        ...

    async def send_late(self, worker: RayWorker, version: int) -> bool:
        """Send the weights to an engine that has just started. Raises `WorkerLost`.

        False: the weights are gone, so it has to wait for the next ones.
        """
        ...


class HostTransfer:
    """Transfer through Ray's object store, which keeps the weights of one version."""

    def __init__(self, ranks: RayRanks, timeout_s: float) -> None:
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._weights: list[ObjectRef[Bucket]] = []

    async def prepare(self) -> None:
        self._weights = []  # or the store needs room for both
        self._weights = await self._ranks.call(PolicyActor.put_weights)

    async def send(self, targets: Sequence[Target], version: int, on_lost: OnLost) -> None:
        await run_together(*(self._send(target.worker, version, on_lost) for target in targets))

    async def send_late(self, worker: RayWorker, version: int) -> bool:
        served = await worker.call(self._timeout_s, RolloutActor.update_weights, self._weights, version)
        check_served(worker, served, version)
        return True

    async def _send(self, worker: RayWorker, version: int, on_lost: OnLost) -> None:
        try:
            await self.send_late(worker, version)
        except WorkerLost as error:
            on_lost(worker, error)


def check_served(worker: RayWorker, served: int, version: int) -> None:
    if served != version:
        raise InfraError(f"{worker} was given the weights of version {version} and serves version {served}: refused")


class _Streamed:
    """The common part of `ipc` and `nccl`: they send the policy's current weights."""

    def __init__(self, ranks: RayRanks, timeout_s: float) -> None:
        self._ranks = ranks
        self._timeout_s = timeout_s
        self._updates: int | None = None  # of the policy, in the weights that engines have or are about to get

    async def prepare(self) -> None:
        """Have engines that start late get these weights from now on, also before the others. None are kept."""
        self._updates = self._ranks.updates

    async def send_late(self, worker: RayWorker, version: int) -> bool:
        """Send through the object store; other engines may be running."""
        updates = self._ranks.updates
        if self._updates != updates:
            return False
        weights = await self._ranks.call(PolicyActor.put_weights)
        await self._ranks.call(PolicyActor.rest)  # the engines next to them need the memory again
        if self._ranks.updates != updates:  # an update was before it on the ranks: these may be newer weights
            return False
        check_served(worker, await worker.call(self._timeout_s, RolloutActor.update_weights, weights, version), version)
        return True

    def _note_updates(self) -> None:
        if self._updates not in (None, self._ranks.updates):
            raise RuntimeError("the policy was trained since its weights were sent; engines need the new ones")
        self._updates = self._ranks.updates

    async def _begin(self, worker: RayWorker, version: int) -> None:
        await worker.call(self._timeout_s, RolloutActor.begin_update, version)

    async def _finish(self, worker: RayWorker, version: int) -> None:
        served = await worker.call(self._timeout_s, RolloutActor.finish_update, version)
        check_served(worker, served, version)

    async def _each(
        self, targets: Sequence[Target], on_lost: OnLost, call: Callable[[Target], Coroutine[Any, Any, Any]]
    ) -> list[Target]:
        """Call all targets at once, and return the targets that were not lost."""

        async def call_target(target: Target) -> bool:
            try:
                await call(target)
            except WorkerLost as error:
                on_lost(target.worker, error)
                return False
            return True

        kept = await asyncio.gather(*map(call_target, targets))
        return [target for target, is_left in zip(targets, kept, strict=True) if is_left]


class SharedMemoryTransfer(_Streamed):
    """`ipc`: chunk by chunk, each read by all engines before the ranks gather the next."""

    async def send(self, targets: Sequence[Target], version: int, on_lost: OnLost) -> None:
        self._note_updates()
        remaining = await self._each(targets, on_lost, lambda target: self._begin(target.worker, version))
        writers = frozenset(rank for target in targets for rank in self._ranks.ranks_beside(target.number))
        await self._ranks.call(PolicyActor.open_weights, writers)
        chunks = await self._ranks.call_each(PolicyActor.next_weights)
        while any(chunk is not None for chunk in chunks):
            remaining = await self._each(remaining, on_lost, partial(self._receive, [chunk or {} for chunk in chunks]))
            chunks = await self._ranks.call_each(PolicyActor.next_weights)
        await self._each(remaining, on_lost, lambda target: self._finish(target.worker, version))
        await self._ranks.call(PolicyActor.rest)  # the chunk's buffer, before engines take memory for their caches

    async def _receive(self, chunks: Sequence[Mapping[str, Any]], target: Target) -> None:
        await target.worker.call(
            self._timeout_s, RolloutActor.receive_chunk, joined(chunks, self._ranks.ranks_beside(target.number))
        )


def joined(chunks: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> dict[str, Any]:
    """Join what the ranks on an engine's devices send to its workers: the same tensors in the memory of each."""
    first = dict(chunks[ranks[0]])
    if first["by"] == "ipc":
        handles = {gpu: handle for rank in ranks for gpu, handle in chunks[rank]["told"]["ipc_handles"].items()}
        first["told"] = first["told"] | {"ipc_handles": handles}
    return first


class BroadcastTransfer(_Streamed):
    """`nccl`: all workers of all engines at once. One that is lost from then on is waited for by the others: the run
    ends.
    """

    def __init__(self, ranks: RayRanks, timeout_s: float, *, by: str, workers_per_engine: int) -> None:
        super().__init__(ranks, timeout_s)
        self._by = by
        self._workers_per_engine = workers_per_engine
        self._connected: list[RayWorker] = []

    async def send(self, targets: Sequence[Target], version: int, on_lost: OnLost) -> None:
        self._note_updates()
        remaining = await self._each(targets, on_lost, lambda target: self._begin(target.worker, version))
        engines = [target.worker for target in remaining]
        if not engines:  # all are being replaced: those that follow are sent the weights when they have started
            return
        try:
            if engines != self._connected:
                await self._connect(engines)
            names, dtypes, shapes = zip(*await self._ranks.call(PolicyActor.weight_shapes), strict=True)
            description = {
                "names": list(names),
                "dtype_names": list(dtypes),
                "shapes": [list(shape) for shape in shapes],
            }
            limit = {"limit": CHUNK_BYTES} if self._by == "gloo" else {}  # NCCL's receivers know it since they joined
            info = {"by": self._by, "told": description | limit}
            await run_together(
                self._ranks.call(PolicyActor.broadcast_weights),
                *(engine.call(self._timeout_s, RolloutActor.receive_chunk, info) for engine in engines),
            )
            await run_together(*(self._finish(engine, version) for engine in engines))
        except WorkerLost as error:
            raise InfraError(
                f"{error}. It was lost while weights were broadcast to all engines, which cannot be taken up again: "
                "resume from the last checkpoint, or set engine.params.transfer=host, which continues without it"
            ) from error

    async def _connect(self, engines: list[RayWorker]) -> None:
        """A new group, of the first rank and the workers of these engines."""
        host, _, port = (await self._ranks.rendezvous()).removeprefix("tcp://").rpartition(":")
        options: dict[str, Any] = {
            "master_address": host,
            "master_port": int(port),
            "world_size": 1 + len(engines) * self._workers_per_engine,
            "packed_buffer_size_bytes": CHUNK_BYTES,
        } | ({"timeout_s": self._timeout_s} if self._by == "gloo" else {"packed": True})
        sources = [
            {"by": self._by, "options": options | {"rank_offset": 1 + number * self._workers_per_engine}}
            for number in range(len(engines))
        ]
        joining = [
            engine.call(self._timeout_s, RolloutActor.connect_weights, source)
            for engine, source in zip(engines, sources, strict=True)
        ]
        await run_together(self._ranks.call(PolicyActor.connect_engines, options), *joining)
        self._connected = engines


def choose(config: Config, ranks: RayRanks, *, cuda: bool) -> WeightTransfer:
    """Return the transfer that `engine.params.transfer` names, or that suits where the engines are."""
    timeout_s = config.cluster.timeout_s
    match chosen_transfer(config, cuda=cuda):
        case "ipc":
            return SharedMemoryTransfer(ranks, timeout_s)
        case "nccl":
            by = "nccl" if cuda else "gloo"
            return BroadcastTransfer(ranks, timeout_s, by=by, workers_per_engine=engine_devices(config))
    return HostTransfer(ranks, timeout_s)
