"""All workers of one run: started in reserved slots, watched, and shut down however the run ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray import cloudpickle
from ray.actor import ActorHandle

from ramet.cluster.ray.actor_base import Actor
from ramet.cluster.ray.actors import RolloutActor
from ramet.cluster.ray.health_monitor import HealthMonitor, OnLost, forward_logs
from ramet.cluster.ray.limits import RayLimiters, start_limiters
from ramet.cluster.ray.placement import PlacementSlot, WorkerPlacement
from ramet.cluster.ray.session import Session
from ramet.cluster.ray.worker import RayWorker
from ramet.components.services import Limiters, LocalLimiters, RunServices
from ramet.config.schema import Config
from ramet.event_loop import cancel_and_wait, first_error

T = TypeVar("T")
CANCEL_S = 5.0  # for cancelled work to end
SHUTDOWN_S = 10.0  # for what workers close by themselves
LAST_LOGS_S = 5.0  # for the last lines of their logs


class WorkerPool:
    """The connection, the reserved slots, the workers, and the first failure that ends the run."""

    def __init__(
        self, config: Config, *, with_policy: bool, with_engines: bool = True, folder: Path, shares_limiters: bool
    ) -> None:
        """Connects, in the main thread. `folder` is where the run's components keep files. `shares_limiters`: one of
        them may ask for a limiter, which all processes share. Raises `ConfigError`.
        """
        self.config = config
        self._limiters: ActorHandle[Any] | None = None
        self.timeout_s = config.cluster.timeout_s
        self.session = Session.open(config.cluster, config.model)
        try:
            self.placement = WorkerPlacement(
                config, with_policy=with_policy, with_engines=with_engines, is_own=self.session.is_own
            )
            limiters = self._start_limiters() if shares_limiters else LocalLimiters()
            self.services = RunServices(folder=folder, seed=config.run.seed, limiters=limiters)
        except BaseException:
            self.session.close()
            raise
        self.monitor = HealthMonitor()
        self._workers: list[RayWorker] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._policy_failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _start_limiters(self) -> Limiters:
        self._limiters = start_limiters()
        return RayLimiters(self._limiters)

    async def reserve(self) -> None:
        """Wait for the slots. Raises `ConfigError` without room for them."""
        await self.placement.reserve(self.timeout_s)

    def start(
        self,
        actor_class: type[Any],
        name: str,
        slot: PlacementSlot,
        setup: object,
        on_lost: OnLost,
        devices: tuple[str, ...] | None = None,
    ) -> RayWorker:
        """A new worker, whose process may take its time. It is watched for its death, not yet for silence."""
        pickled: bytes = cloudpickle.dumps(setup)  # type: ignore[no-untyped-call]
        worker = RayWorker(name, actor_class, slot, pickled, devices)
        self._workers.append(worker)
        self.monitor.watch(worker, on_lost, may_be_silent=True)
        return worker

    def stop(self, worker: RayWorker) -> None:
        """Kill it, and watch it no longer."""
        self.monitor.unwatch(worker)
        self._workers.remove(worker)
        worker.kill()

    def create_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in the background until it or the pool ends. It must not raise."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def fail(self, error: Exception, *, policy: bool = False) -> None:
        """The run cannot continue: all that waits in `unless_failed`, now and later, raises `error`. `policy`: it has
        failed itself; otherwise its weights can still be saved.
        """
        for failure in (self._failure, self._policy_failure) if policy else (self._failure,):
            if not failure.done():
                failure.set_exception(error)
                failure.exception()  # asyncio need not warn if nothing waits for it

    async def unless_failed(self, work: Coroutine[Any, Any, T], *, policy: bool = False) -> T:
        """The result of `work`, or the error of `fail` as soon as that is called; `work` is cancelled then. `policy`:
        it needs only the policy.
        """
        task, failure = asyncio.ensure_future(work), self._policy_failure if policy else self._failure
        try:
            awaited: set[asyncio.Future[Any]] = {task, failure}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            if not failure.done():
                return task.result()
        finally:
            await cancel_and_wait([task], timeout_s=CANCEL_S)
        error = failure.exception()
        assert error is not None
        raise error

    async def close(self) -> None:
        """End all processes, whatever state they are in."""
        await cancel_and_wait(self._tasks, timeout_s=CANCEL_S)
        await asyncio.to_thread(self.monitor.stop)
        await asyncio.gather(*(self._shut_down(worker) for worker in self._workers))
        for worker in self._workers:
            worker.kill()
        with contextlib.suppress(Exception):  # the cluster may be gone
            self.placement.release()
            if self._limiters is not None:
                ray.kill(self._limiters)
        self.session.close()

    async def _shut_down(self, worker: RayWorker) -> None:
        """Let it close its resources, and forward the last of its log."""
        with contextlib.suppress(Exception):
            if hasattr(worker.actor, "close"):
                await worker.call(SHUTDOWN_S, RolloutActor.close)
            last = await worker.call(LAST_LOGS_S, Actor.ping)
            forward_logs(worker, last.lines)


async def run_together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all concurrently. The first to fail cancels the others, and its error is raised as it is."""
    async with first_error(), asyncio.TaskGroup() as group:
        for coroutine in work:
            group.create_task(coroutine)
