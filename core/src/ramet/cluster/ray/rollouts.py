"""`ramet.cluster.interfaces.Rollouts` over several workers: whole groups go to whoever has least to do.

A worker that dies, or is silent, costs the groups that it was playing: a new one takes its seat, is given the weights
of now, and they are played again, with the same seeds. Half a group never comes back.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ray import ObjectRef

from ramet.cluster.interfaces import OnGroup
from ramet.cluster.ray.actors import RolloutActor
from ramet.cluster.ray.dispatch import Dispatch
from ramet.cluster.ray.errors import WorkerLost
from ramet.cluster.ray.jobs import Counts, RolloutJob, total
from ramet.cluster.ray.weights import Bucket
from ramet.cluster.ray.worker import RayWorker
from ramet.cluster.ray.worker_pool import WorkerPool, together
from ramet.components.toolbox import ToolNames
from ramet.config.schema import Config
from ramet.engines.protocol import EngineInfo
from ramet.errors import InfraError
from ramet.rollout.metrics import RolloutMetrics
from ramet.rollout.plan import RolloutPlan
from ramet.rollout.worker import task_names
from ramet.types import Group, Task

logger = logging.getLogger(__name__)
MAX_RESTARTS = 3  # of rollout workers, in one run of the command
PATIENCE_S = 60.0  # for a group whose time is over to come back masked


@dataclass(frozen=True, slots=True)
class _Given:
    """The weights that every engine has, or is about to have. They stay in the object store for who comes later."""

    weights: list[ObjectRef[Bucket]]
    version: int
    in_flight: bool


class RayRollouts:
    """Workers are named by their seats."""

    def __init__(self, crew: WorkerPool, *, branching: bool, tools: ToolNames, owns_crew: bool = False) -> None:
        self.restarts = 0
        self._crew = crew
        self._config = crew.config
        self._job = RolloutJob(config=crew.config, branching=branching, services=crew.services, tool_sets=tools.sets)
        self._dispatch = Dispatch(crew.config.rollout.max_concurrent)
        self._seats: dict[RayWorker, int] = {}
        self._devices: dict[int, tuple[str, ...]] = {}
        self._given: _Given | None = None
        self._info: EngineInfo | None = None
        self._owns_crew = owns_crew
        self._asleep = False
        self._metrics = RolloutMetrics(crew.config.rollout.first_tokens)
        self._restarts_told = 0

    @classmethod
    async def start(cls, config: Config, *, folder: Path, tools: ToolNames) -> RayRollouts:
        """Engines alone, without forks, for evaluation. Raises `ConfigError`."""
        crew = WorkerPool(config, with_policy=False, folder=folder)
        try:
            await crew.reserve()
            rollouts = cls(crew, branching=False, tools=tools, owns_crew=True)
            await crew.unless_failed(rollouts.open({}))
        except BaseException:
            await crew.close()
            raise
        return rollouts

    async def open(self, devices: dict[int, tuple[str, ...]]) -> None:
        """Start all workers at once. `devices`: GPUs of seats that share them with policy ranks."""
        self._devices = devices
        await together(*(self._start(seat) for seat in range(self._config.cluster.rollout_workers)))

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "not started"
        return self._info

    def group_size(self, plan: RolloutPlan) -> int:
        return plan.resolved(self._config.rollout).group_size

    async def run(
        self, tasks: Sequence[Task], *, step: int, plan: RolloutPlan, on_group: OnGroup | None = None
    ) -> list[Group]:
        return await self._crew.unless_failed(self._run(tasks, step, plan, on_group))

    async def _run(self, tasks: Sequence[Task], step: int, plan: RolloutPlan, on_group: OnGroup | None) -> list[Group]:
        await self.wake()
        started = time.monotonic()
        ends_at = started + self._config.rollout.step_deadline_s if plan.step_deadline else None
        try:
            async with asyncio.TaskGroup() as playing:
                plays = [
                    playing.create_task(self._play(task, name, step, plan, ends_at, on_group))
                    for task, name in zip(tasks, task_names(tasks), strict=True)
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        self._metrics.seconds += time.monotonic() - started
        return [play.result() for play in plays]

    async def _play(
        self, task: Task, name: str, step: int, plan: RolloutPlan, ends_at: float | None, on_group: OnGroup | None
    ) -> Group:
        """Play one group, as often as its worker is lost. `ends_at` None: there is no deadline of the step, so a group
        has the time of two rollouts: one that it may wait for in its worker, and its own, which start together.
        """
        size = self.group_size(plan)
        again = False
        while True:
            worker = await self._dispatch.take(size, first=again)
            left, key = 2 * self._config.rollout.deadline_s, "rollout.deadline_s"
            if ends_at is not None:
                left, key = max(0.0, ends_at - time.monotonic()), "rollout.step_deadline_s"
            try:
                group: Group = await worker.call(
                    "play", task, name, step, plan, left, timeout_s=left + PATIENCE_S, key=key
                )
                break
            except InfraError as error:  # lost or stuck, for nothing else of this kind leaves a worker
                self._lose(worker, error)
                again = True
            finally:
                self._dispatch.give_back(worker, size)
        self._metrics.add(group)
        if on_group is not None:
            on_group(group)
        return group

    async def update_weights(self, weights: list[ObjectRef[Bucket]], version: int, *, in_flight: bool) -> None:
        """Give them to every engine. Who is just being started gets them before it plays."""
        self._given = given = _Given(weights, version, in_flight)
        await self.wake()
        await together(*(self._give_or_lose(worker, given) for worker in self._dispatch.workers))

    async def sleep(self) -> None:
        """Co-located engines give their memory to the policy until `wake`."""
        if self._asleep:
            return
        self._asleep = True
        able = [await worker.call("sleep", timeout_s=self._crew.timeout_s) for worker in self._dispatch.workers]
        if not all(able):
            logger.warning("cluster.colocate=true: engine %s cannot sleep and keeps its memory", self.info.name)

    async def wake(self) -> None:
        if self._asleep:
            self._asleep = False
            for worker in self._dispatch.workers:
                await worker.call("wake", timeout_s=self._crew.timeout_s)

    async def metrics(self) -> dict[str, float]:
        """Rollouts are counted here, where all groups pass; tools and engines by their workers. Counts add up, and
        percentiles of tools are those of all calls. What a lost worker had counted is lost.
        """
        counted = total(await self._counts())
        restarts, self._restarts_told = self.restarts - self._restarts_told, self.restarts
        return {**self._metrics.take(), **counted, "rollout/restarts": float(restarts)}

    async def _counts(self) -> list[Counts]:
        found = []
        for worker in self._dispatch.workers:
            try:
                found.append(await worker.call("counts", timeout_s=self._crew.timeout_s))
            except InfraError as error:
                self._lose(worker, error)
        return found

    async def close(self) -> None:
        if self._owns_crew:
            await self._crew.close()

    async def _start(self, seat: int) -> None:
        """A new worker in this seat that has the weights of now."""
        worker = self._crew.hire(
            RolloutActor,
            f"rollout worker {seat}",
            self._crew.placement.engine_seat(seat),
            self._job,
            self._lose,
            self._devices.get(seat),
        )
        self._seats[worker] = seat
        try:
            await self._prepare(worker)
        except WorkerLost as error:
            self._lose(worker, error)
            raise
        if worker in self._seats:  # or it was lost with its last answer under way
            self._crew.pulse.watch(worker, self._lose, may_be_silent=False)
            self._dispatch.join(worker)

    async def _prepare(self, worker: RayWorker) -> None:
        await worker.meet(self._crew.timeout_s)
        self._info = await worker.call("start", timeout_s=self._crew.timeout_s)
        given = None
        while given is not self._given:
            given = self._given
            assert given is not None
            await self._give(worker, given)
        if self._asleep:
            await worker.call("sleep", timeout_s=self._crew.timeout_s)

    async def _give(self, worker: RayWorker, given: _Given) -> None:
        arguments = (given.weights, given.version, given.in_flight)
        served = await worker.call("update", *arguments, timeout_s=self._crew.timeout_s)
        if served != given.version:
            raise InfraError(
                f"{worker} was given the weights of version {given.version} and serves version {served}: refused"
            )

    async def _give_or_lose(self, worker: RayWorker, given: _Given) -> None:
        try:
            await self._give(worker, given)
        except WorkerLost as error:
            self._lose(worker, error)

    def _lose(self, worker: RayWorker, error: InfraError) -> None:
        """Put another in its seat. Everyone who had to do with it comes here; the first is heard."""
        if (seat := self._seats.pop(worker, None)) is None:
            return
        self._dispatch.leave(worker)
        self._crew.dismiss(worker)
        self.restarts += 1
        if self.restarts > MAX_RESTARTS:
            self._crew.fail(
                InfraError(f"{error}; at most {MAX_RESTARTS} rollout workers are replaced in one run, so it stops")
            )
            return
        logger.warning(
            "%s; replacing it (%d of at most %d in this run), and its groups are played again",
            error,
            self.restarts,
            MAX_RESTARTS,
        )
        self._crew.spawn(self._restart(seat))

    async def _restart(self, seat: int) -> None:
        started = time.monotonic()
        try:
            await self._start(seat)
        except WorkerLost:
            return  # another one is under way to the seat
        except Exception as error:
            self._crew.fail(error)
            return
        logger.warning("rollout worker %d plays again after %.1f s", seat, time.monotonic() - started)
