"""The rollout workers of a run: started, replaced if they are lost, given weights, put to sleep and woken.

A worker that dies, or is silent, is replaced: a new one takes its slot and gets the current weights. If its node is
lost, Ray moves the slot to a node that has room, or that joins; until then the others run all groups.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from ramet.cluster.counts import Counts
from ramet.cluster.ray.actor_base import RolloutSetup
from ramet.cluster.ray.actors import RolloutActor
from ramet.cluster.ray.dispatcher import Dispatcher
from ramet.cluster.ray.weight_transfers import Target, WeightTransfer
from ramet.cluster.ray.worker import RayWorker, WorkerLate, WorkerLost
from ramet.cluster.ray.worker_pool import WorkerPool, run_together
from ramet.components.toolbox import ToolNames
from ramet.engines.protocol import EngineInfo
from ramet.errors import InfraError
from ramet.io import repeats

logger = logging.getLogger(__name__)
MAX_RESTARTS = 3  # of rollout workers, within RESTART_WINDOW_S: a long run may lose one now and then
RESTART_WINDOW_S = 1800.0
NODE_LOST_S = 30.0  # between the losses of the first and the last worker of a node that is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """One or several workers of a node that were lost together."""

    at: float
    node: str | None  # None: the worker had not started

    def explains(self, worker: RayWorker, now: float) -> bool:
        """Whether this worker was lost with those: it ran there when they were, or Ray, which learns of a node's death
        later, had placed it there.
        """
        if now - self.at > NODE_LOST_S:
            return False
        if worker.process is None:
            return self.node is not None
        return worker.process.node == self.node and worker.started_at < self.at


class RolloutWorkers:
    """Workers are numbered by their slots; a replacement has the number of the worker that it replaces.

    `dispatcher` has the working ones. `transfer`: for engines next to a policy in training. `before_wake` is awaited
    before co-located engines take memory, so that the policy frees its own. `restarts`: workers that were replaced.
    """

    def __init__(self, pool: WorkerPool, *, branching: bool, tools: ToolNames) -> None:
        self.dispatcher = Dispatcher(pool.config.rollout.max_concurrent)
        self.transfer: WeightTransfer | None = None
        self.before_wake: Callable[[], Awaitable[None]] | None = None
        self.restarts = 0
        self._recent: list[_Loss] = []  # within the window
        self._pool = pool
        self._setup = RolloutSetup(
            config=pool.config, branching=branching, services=pool.services, tool_sets=tools.sets
        )
        self._numbers: dict[RayWorker, int] = {}
        self._devices: dict[int, tuple[str, ...]] = {}
        self._version: int | None = None  # of the weights that every engine has, or will have soon
        self._pending = False  # new weights are being prepared
        self._asleep = False
        self._has_room = True  # for engines that start: co-located ones have none from `sleep` until all are awake
        self._starting: set[RayWorker] = set()  # engines that take memory, and are not in the dispatcher yet
        self._changed = asyncio.Condition()  # of the four above without `_asleep`
        self._info: EngineInfo | None = None

    async def open(self, devices: dict[int, tuple[str, ...]]) -> None:
        """Start all workers at once. `devices`: by worker, the GPUs that it shares with policy ranks."""
        self._devices = devices
        await run_together(*(self._start(number) for number in range(self._pool.config.cluster.rollout_workers)))

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "not started"
        return self._info

    async def update_weights(self, version: int) -> None:
        """Send the policy's weights to every engine. Engines that are starting get them before their first group."""
        assert self.transfer is not None, "without a policy no weights are sent"
        if self.before_wake is not None:  # co-located: the policy needs memory to gather them
            await self.sleep()
        self._pending = True
        await self.transfer.prepare()
        self._version, self._pending = version, False
        await self._notify()
        await self._wake_with(self.transfer, version)

    async def sleep(self) -> None:
        """Co-located engines free their memory for the policy until `wake`; one that starts does when it has started,
        and no other starts before `wake`.
        """
        if self._asleep:
            return
        self._asleep, self._has_room = True, False
        await self._wait_for(lambda: not self._starting)
        able = await asyncio.gather(*(self._sleep(worker) for worker in self.dispatcher.workers))
        if not all(able):
            message = "cluster.colocate=true: engine %s cannot sleep and keeps its memory"
            repeats.warn(logger, "an engine cannot sleep", message, self.info.name, by_step=True)

    async def wake(self) -> None:
        """Wake the engines with the weights that were sent last, since sleep drops them."""
        if self._asleep:
            assert self.transfer is not None and self._version is not None, "engines slept before they had weights"
            await self._wake_with(self.transfer, self._version)

    async def _wake_with(self, transfer: WeightTransfer, version: int) -> None:
        """All engines at once. Those that are asleep have room for weights before they have for their caches."""
        woken, self._asleep = self._asleep, False
        if woken:
            if self.before_wake is not None:
                await self.before_wake()
            await self._call_each(RolloutActor.wake_weights)
        targets = [Target(worker=worker, number=self._numbers[worker]) for worker in self.dispatcher.workers]
        await transfer.send(targets, version, self.replace)
        if woken:
            await self._call_each(RolloutActor.wake)
            self._has_room = True
            await self._notify()

    async def _call_each(self, function: Callable[[RolloutActor], Coroutine[Any, Any, None]]) -> None:
        """Call a method of all workers at once; workers that are lost are replaced."""

        async def call(worker: RayWorker) -> None:
            try:
                await worker.call(self._pool.timeout_s, function)
            except WorkerLost as error:
                self.replace(worker, error)

        await run_together(*map(call, self.dispatcher.workers))

    async def _sleep(self, worker: RayWorker) -> bool:
        """Whether it can. One that is lost is replaced when the others are awake."""
        try:
            able = await worker.call(self._pool.timeout_s, RolloutActor.sleep)
        except WorkerLost as error:
            self.replace(worker, error)
            return True
        return able

    async def counts(self) -> list[Counts]:
        """Return what tools and engines counted since the last call; the counts of a lost worker are lost."""
        counts = []
        for worker in self.dispatcher.workers:
            try:
                counts.append(await worker.call(self._pool.timeout_s, RolloutActor.counts))
            except InfraError as error:
                self.replace(worker, error)
        return counts

    async def _start(self, number: int, *, patiently: bool = False) -> None:
        """A new worker with the current weights. `patiently`: while others work, it may wait for a node without end.

        Raises `WorkerLost` if it is lost meanwhile; it is replaced then.
        """
        worker = self._pool.start(
            RolloutActor,
            f"rollout worker {number}",
            self._pool.placement.engine_slot(number),
            self._setup,
            self.replace,
            self._devices.get(number),
        )
        self._numbers[worker] = number
        try:
            await self._wait_started(worker, patiently)
            await self._wait_for(lambda: self._has_room)
            self._starting.add(worker)
            self._info = await worker.call(self._pool.timeout_s, RolloutActor.start)
            await self._give_weights(worker)
            if worker in self._numbers:  # or it was lost while its last answer was in flight
                self._pool.monitor.watch(worker, self.replace, may_be_silent=False)
                self.dispatcher.add(worker)
        except WorkerLost as error:
            self.replace(worker, error)
            raise
        finally:
            self._starting.discard(worker)
            await self._notify()

    async def _wait_started(self, worker: RayWorker, patiently: bool) -> None:
        while True:
            try:
                await worker.wait_started(self._pool.timeout_s)
                return
            except WorkerLate:
                working = len(self.dispatcher.workers)
                if not patiently or not working:
                    raise
                logger.warning(
                    "%s has not started within cluster.timeout_s=%g: no node has room for it. The run continues with "
                    "%d of %d rollout workers; a node that joins gets it",
                    worker,
                    self._pool.timeout_s,
                    working,
                    self._pool.config.cluster.rollout_workers,
                )

    async def _give_weights(self, worker: RayWorker) -> None:
        """Send the current weights to a new engine; others may come meanwhile."""
        sent_version: int | None = None
        while True:
            await self._wait_for(lambda: not self._pending)
            if self.transfer is None or self._version in (None, sent_version):
                return
            sent_version = self._version
            if not await self.transfer.send_late(worker, sent_version):
                await self._other_version(sent_version)

    async def _other_version(self, version: int | None) -> None:
        """Wait until engines are to have another."""
        await self._wait_for(lambda: self._version != version)

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def replace(self, worker: RayWorker, error: InfraError) -> None:
        """Start another worker in its slot. Called by all that find it lost; only the first call has an effect."""
        if (number := self._numbers.pop(worker, None)) is None:
            return
        self.dispatcher.remove(worker)
        self._pool.stop(worker)
        self.restarts += 1
        self._count(worker)
        if len(self._recent) > MAX_RESTARTS:
            self._pool.fail(
                InfraError(
                    f"{error}; at most {MAX_RESTARTS} rollout workers are replaced within {RESTART_WINDOW_S / 60:g} "
                    "minutes, so the run stops"
                )
            )
            return
        logger.warning(
            "%s; replacing it (%d of at most %d within %g minutes), and its groups are run again",
            error,
            len(self._recent),
            MAX_RESTARTS,
            RESTART_WINDOW_S / 60,
        )
        self._pool.create_task(self._restart(number))

    def _count(self, lost: RayWorker) -> None:
        """Count a loss. A node takes all its workers with it, eight or more, which is one."""
        now = time.monotonic()
        self._recent = [loss for loss in self._recent if now - loss.at < RESTART_WINDOW_S]
        if not any(loss.explains(lost, now) for loss in self._recent):
            self._recent.append(_Loss(at=now, node=None if lost.process is None else lost.process.node))

    async def _restart(self, number: int) -> None:
        started = time.monotonic()
        try:
            await self._start(number, patiently=True)
        except WorkerLost:
            return  # `_start` has called `_replace` for it
        except Exception as error:
            self._pool.fail(error)
            return
        logger.warning("rollout worker %d is replaced after %.1f s", number, time.monotonic() - started)
