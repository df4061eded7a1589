"""All workers of one run: hired into reserved seats, watched, and sent home whatever happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray import cloudpickle
from ray.actor import ActorHandle

from ramet.cluster.ray.health_monitor import HealthMonitor, OnLost, forward_logs
from ramet.cluster.ray.limits import RayLimiters, start_limiters
from ramet.cluster.ray.placement import PlacementSlot, WorkerPlacement
from ramet.cluster.ray.session import Session
from ramet.cluster.ray.worker import RayWorker
from ramet.components.build import wants_services
from ramet.components.services import Limiters, LocalLimiters, RunServices
from ramet.config.schema import Config

T = TypeVar("T")
CANCEL_S = 5.0  # for work that is given up
FAREWELL_S = 10.0  # for what workers close by themselves
LAST_WORDS_S = 5.0  # for what they have to say behind it


class WorkerPool:
    """The connection, the bundles, the workers and the first failure that nothing can mend."""

    def __init__(self, config: Config, *, with_policy: bool, folder: Path) -> None:
        """Connects, in the main thread. `folder` is the run's for what components keep. Raises `ConfigError`."""
        self.config = config
        self._limiters: ActorHandle[Any] | None = None
        self.timeout_s = config.cluster.timeout_s
        self.session = Session.open(config.cluster, config.model)
        try:
            self.placement = WorkerPlacement(config, with_policy=with_policy, is_own=self.session.is_own)
            self.services = RunServices(folder=folder, seed=config.run.seed, limiters=self._limits())
        except BaseException:
            self.session.close()
            raise
        self.pulse = HealthMonitor()
        self._workers: list[RayWorker] = []
        self._chores: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _limits(self) -> Limiters:
        """Shared by all processes, if a component may ask for one."""
        if not wants_services(self.config):
            return LocalLimiters()
        self._limiters = start_limiters()
        return RayLimiters(self._limiters)

    async def reserve(self) -> None:
        await self.placement.reserve(self.timeout_s)

    def hire(
        self,
        kind: type[Any],
        name: str,
        seat: PlacementSlot,
        job: object,
        on_lost: OnLost,
        devices: tuple[str, ...] | None = None,
    ) -> RayWorker:
        """A new worker, whose process may take its time. It is watched; silence is allowed."""
        pickled: bytes = cloudpickle.dumps(job)  # type: ignore[no-untyped-call]
        worker = RayWorker(name, kind, seat, pickled, devices)
        self._workers.append(worker)
        self.pulse.watch(worker, on_lost, may_be_silent=True)
        return worker

    def dismiss(self, worker: RayWorker) -> None:
        self.pulse.forget(worker)
        self._workers.remove(worker)
        worker.kill()

    def spawn(self, chore: Coroutine[Any, Any, None]) -> None:
        """Do it beside everything else. It ends with the crew, and must not raise."""
        task = asyncio.create_task(chore)
        self._chores.add(task)
        task.add_done_callback(self._chores.discard)

    def fail(self, error: Exception) -> None:
        """Nothing of this run can go on: whatever is waited for ends with `error`, now and later."""
        if not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # nobody need wait for it

    async def unless_failed(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work`, and not longer than until somebody called `fail`."""
        task = asyncio.ensure_future(work)
        try:
            awaited: set[asyncio.Future[Any]] = {task, self._failure}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if not self._failure.done():
                return task.result()
        finally:
            await _end([task])
        error = self._failure.exception()
        assert error is not None
        raise error

    async def close(self) -> None:
        """Nothing is left behind, in whatever state it is found."""
        await _end(self._chores)
        await asyncio.to_thread(self.pulse.stop)
        await asyncio.gather(*(self._farewell(worker) for worker in self._workers))
        for worker in self._workers:
            worker.kill()
        with contextlib.suppress(Exception):  # the cluster may be gone
            self.placement.release()
            if self._limiters is not None:
                ray.kill(self._limiters)
        self.session.close()

    async def _farewell(self, worker: RayWorker) -> None:
        """Let it close what it holds, and hear the last that it says."""
        with contextlib.suppress(Exception):
            if hasattr(worker.actor, "close"):
                await worker.call("close", timeout_s=FAREWELL_S)
            forward_logs(worker, await worker.call("ping", timeout_s=LAST_WORDS_S))


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """All at once. The first to fail ends the others, and its error is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in work:
                group.create_task(one)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel what still runs and give it a moment to notice. What it ends with is of no interest."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    if tasks:
        done, _ = await asyncio.wait(tasks, timeout=CANCEL_S)
        for task in done:
            if not task.cancelled():
                task.exception()
