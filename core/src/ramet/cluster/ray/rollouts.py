"""`ramet.cluster.interfaces.Rollouts` over several workers: whole groups go to the least loaded.

A worker that dies, or is silent, loses the groups that were running on it: a new worker takes its slot and gets the
current weights, and the groups are run again with the same seeds. Part of a group is never returned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from ramet.cluster.counts import Counts, total_metrics
from ramet.cluster.interfaces import OnGroup
from ramet.cluster.ray.actor_base import RolloutSetup
from ramet.cluster.ray.actors import RolloutActor
from ramet.cluster.ray.dispatcher import Dispatcher
from ramet.cluster.ray.weight_transfers import Target, WeightTransfer
from ramet.cluster.ray.worker import RayWorker, WorkerLost
from ramet.cluster.ray.worker_pool import WorkerPool, run_together
from ramet.components.toolbox import ToolNames
from ramet.config.schema import Config
from ramet.engines.protocol import EngineInfo
from ramet.errors import InfraError
from ramet.rollout.jobs import task_names
from ramet.rollout.metrics import RolloutMetrics
from ramet.rollout.plan import RolloutPlan, StepDeadline
from ramet.rollout.progress import ProgressCounter, RolloutProgress, RunCounts, summed
from ramet.rollout.record import GroupRecord
from ramet.tracking import repeats
from ramet.types import Group, Task

logger = logging.getLogger(__name__)
MAX_RESTARTS = 3  # of rollout workers, within RESTART_WINDOW_S: a long run may lose one now and then
RESTART_WINDOW_S = 1800.0
PATIENCE_S = 60.0  # for a group whose time is over to come back masked


class RayRollouts:
    """Workers are numbered by their slots; a replacement has the number of the worker that it replaces."""

    def __init__(
        self,
        pool: WorkerPool,
        *,
        branching: bool,
        tools: ToolNames,
        owns_pool: bool = False,
        score_s: float = 0.0,
        in_rounds: bool = False,
    ) -> None:
        """`score_s`: how long rewards may take where rollouts are scored while their group runs. `in_rounds`: the
        branch policy plays all groups of a worker together. `before_wake` is awaited before co-located engines
        take memory, so that the policy frees its own.
        """
        self.restarts = 0
        self._recent: list[float] = []  # when workers were replaced, within the window
        self._score_s = score_s
        self._in_rounds = in_rounds
        self._pool = pool
        self._config = pool.config
        self._setup = RolloutSetup(
            config=pool.config, branching=branching, services=pool.services, tool_sets=tools.sets
        )
        self._dispatcher = Dispatcher(pool.config.rollout.max_concurrent)
        self._numbers: dict[RayWorker, int] = {}
        self._devices: dict[int, tuple[str, ...]] = {}
        self.transfer: WeightTransfer | None = None  # of engines that a policy is trained beside
        self._version: int | None = None  # of the weights that every engine has, or will have soon
        self._pending = False  # new weights are being prepared
        self._changed = asyncio.Condition()  # of the two above
        self._info: EngineInfo | None = None
        self._owns_pool = owns_pool
        self.before_wake: Callable[[], Awaitable[None]] | None = None
        self._asleep = False
        self._metrics = RolloutMetrics(pool.config.rollout.first_tokens)
        self._kept: list[Counts] = []  # for `metrics`, from before what it leaves out
        self._restarts_reported = 0
        self._progress = ProgressCounter()  # of groups that are back, and of how many there will be

    @classmethod
    async def start(cls, config: Config, *, folder: Path, tools: ToolNames) -> RayRollouts:
        """Engines alone, without forks, for evaluation. Raises `ConfigError`."""
        pool = WorkerPool(config, with_policy=False, folder=folder, shares_limiters=tools.are_started)
        try:
            await pool.reserve()
            rollouts = cls(pool, branching=False, tools=tools, owns_pool=True)
            await pool.unless_failed(rollouts.open({}))
        except BaseException:
            await pool.close()
            raise
        return rollouts

    async def open(self, devices: dict[int, tuple[str, ...]]) -> None:
        """Start all workers at once. `devices`: by worker, the GPUs that it shares with policy ranks."""
        self._devices = devices
        await run_together(*(self._start(number) for number in range(self._config.cluster.rollout_workers)))

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "not started"
        return self._info

    def group_size(self, plan: RolloutPlan) -> int:
        return plan.resolved(self._config.rollout).group_size

    async def run(
        self,
        tasks: Sequence[Task],
        *,
        step: int,
        plan: RolloutPlan,
        on_group: OnGroup | None = None,
        stored: Mapping[str, GroupRecord] | None = None,
    ) -> list[Group]:
        return await self._pool.unless_failed(self._run(tasks, step, plan, on_group, stored or {}))

    async def _run(
        self,
        tasks: Sequence[Task],
        step: int,
        plan: RolloutPlan,
        on_group: OnGroup | None,
        stored: Mapping[str, GroupRecord],
    ) -> list[Group]:
        await self.wake()
        started = time.monotonic()
        runs: list[asyncio.Task[list[Group]]] = []
        deadline = StepDeadline(self._config.rollout.step_deadline_s) if plan.step_deadline else None
        try:
            with self._progress.counting(len(tasks) * self.group_size(plan)) as counts:
                async with asyncio.TaskGroup() as running:
                    for part in self._parts(tasks):
                        run = running.create_task(self._run_part(part, step, plan, deadline, on_group, counts, stored))
                        runs += [run] if plan.kept else []
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        if plan.counted:
            self._metrics.seconds += time.monotonic() - started
        return [group for run in runs for group in run.result()]

    def _parts(self, tasks: Sequence[Task]) -> list[list[tuple[Task, str]]]:
        """What workers are given at once, tasks with their names: a group, or, of a policy that plays in rounds, a
        worker's share of the step, which is one lockstep batch.
        """
        named = list(zip(tasks, task_names(tasks), strict=True))
        n = min(self._config.cluster.rollout_workers, len(named)) if self._in_rounds else len(named)
        bounds = [len(named) * part // n for part in range(n + 1)] if n else []
        return [named[start:end] for start, end in pairwise(bounds)]

    async def _run_part(
        self,
        part: Sequence[tuple[Task, str]],
        step: int,
        plan: RolloutPlan,
        deadline: StepDeadline | None,
        on_group: OnGroup | None,
        counts: RunCounts,
        stored: Mapping[str, GroupRecord],
    ) -> list[Group]:
        """Run one part, again each time its worker is lost. `deadline` None: the step has none, so a group has
        the time of two rollouts: one that it may wait for in its worker, and its own, which start together. Played in
        rounds, rollouts of a group may start one after the other.
        """
        rollouts = self.group_size(plan)
        size = rollouts * len(part)
        again = False
        while True:
            worker = await self._dispatcher.acquire(size, first=again)
            one_by_one = 1 + rollouts if self._in_rounds else 2
            left, key = one_by_one * self._config.rollout.deadline_s, "rollout.deadline_s"
            if deadline is not None:
                left, key = deadline.left(), "rollout.step_deadline_s"
            patience = PATIENCE_S + (self._score_s if plan.branch else 0.0)  # rewards have time-outs of their own
            try:
                groups = await self._call(worker, part, step, plan, left, stored, timeout_s=left + patience, key=key)
                break
            except InfraError as error:  # lost or stuck: a worker masks all other infrastructure failures
                self._replace(worker, error)
                again = True
            finally:
                self._dispatcher.release(worker, size)
        for group in groups:
            if plan.counted:
                self._metrics.add(group)
            counts.total -= group.n_unused
            counts.done += len(group.rollouts)
            counts.forks += sum(rollout.parent is not None for rollout in group.rollouts)
            if on_group is not None:
                on_group(group)
        return groups

    async def _call(
        self,
        worker: RayWorker,
        part: Sequence[tuple[Task, str]],
        step: int,
        plan: RolloutPlan,
        left: float,
        stored: Mapping[str, GroupRecord],
        *,
        timeout_s: float,
        key: str,
    ) -> list[Group]:
        tasks, names = zip(*part, strict=True)
        plan = replace(plan, kept=True)  # from the worker they come here
        if self._in_rounds:
            shared: list[Group] = await worker.call(
                "run_share", tasks, names, step, plan, left, timeout_s=timeout_s, key=key
            )
            return shared
        kept = stored.get(tasks[0].id)
        return [await worker.call("run_group", *part[0], step, plan, left, kept, timeout_s=timeout_s, key=key)]

    async def update_weights(self, version: int) -> None:
        """Send the policy's weights to every engine. Engines that are starting get them before their first group."""
        assert self.transfer is not None, "engines alone have no policy"
        self._pending = True
        await self.transfer.prepare()
        async with self._changed:
            self._version, self._pending = version, False
            self._changed.notify_all()
        await self._wake_with(self.transfer, version)

    async def sleep(self) -> None:
        """Co-located engines free their memory for the policy until `wake`."""
        if self._asleep:
            return
        self._asleep = True
        able = await asyncio.gather(*(self._sleep(worker) for worker in self._dispatcher.workers))
        if not all(able):
            message = "cluster.colocate=true: engine %s cannot sleep and keeps its memory"
            repeats.warn(logger, "an engine cannot sleep", message, self.info.name, by_step=True)

    async def wake(self) -> None:
        """With the weights that were sent last, since engines drop theirs."""
        if self._asleep:
            assert self.transfer is not None and self._version is not None, "engines slept before they had weights"
            await self._wake_with(self.transfer, self._version)

    async def _wake_with(self, transfer: WeightTransfer, version: int) -> None:
        """All engines at once. Those that are asleep have room for weights before they have for their caches."""
        woken, self._asleep = self._asleep, False
        if woken:
            if self.before_wake is not None:
                await self.before_wake()
            await self._call_each("wake_weights")
        targets = [Target(worker=worker, number=self._numbers[worker]) for worker in self._dispatcher.workers]
        await transfer.send(targets, version, self._replace)
        if woken:
            await self._call_each("wake")

    async def _call_each(self, method: str) -> None:
        """Of every engine, at once; those that are lost are replaced."""

        async def call(worker: RayWorker) -> None:
            try:
                await worker.call(method, timeout_s=self._pool.timeout_s)
            except WorkerLost as error:
                self._replace(worker, error)

        await run_together(*map(call, self._dispatcher.workers))

    async def _sleep(self, worker: RayWorker) -> bool:
        """Whether it can. One that is lost is replaced, by one that falls asleep when it has started."""
        try:
            able: bool = await worker.call("sleep", timeout_s=self._pool.timeout_s)
        except WorkerLost as error:
            self._replace(worker, error)
            return True
        return able

    async def metrics(self) -> dict[str, float]:
        """Rollouts are counted here, where all groups pass; tools and engines by their workers. Counts add up, and
        percentiles of tools are those of all calls. The counts of a lost worker are lost.
        """
        kept, self._kept = self._kept, []
        counted = total_metrics([*kept, *await self._counts()])
        restarts, self._restarts_reported = self.restarts - self._restarts_reported, self.restarts
        return {**self._metrics.take(), **counted, "rollout/restarts": float(restarts)}

    @asynccontextmanager
    async def uncounted(self) -> AsyncIterator[None]:
        self._kept += await self._counts()
        yield
        await self._counts()

    def progress(self) -> RolloutProgress:
        """Groups that are back are counted here, the others by their workers, as of their last pings."""
        back = self._progress.progress()
        found = [worker.progress for worker in self._dispatcher.workers]
        running = summed(one for one in found if isinstance(one, RolloutProgress))
        return replace(back + running, total=back.total, done=min(back.total, back.done + running.done))

    async def _counts(self) -> list[Counts]:
        found = []
        for worker in self._dispatcher.workers:
            try:
                found.append(await worker.call("counts", timeout_s=self._pool.timeout_s))
            except InfraError as error:
                self._replace(worker, error)
        return found

    async def close(self) -> None:
        if self._owns_pool:
            await self._pool.close()

    async def _start(self, number: int) -> None:
        """A new worker with the current weights. Raises `WorkerLost` if it is lost meanwhile; it is replaced then."""
        worker = self._pool.start(
            RolloutActor,
            f"rollout worker {number}",
            self._pool.placement.engine_slot(number),
            self._setup,
            self._replace,
            self._devices.get(number),
        )
        self._numbers[worker] = number
        try:
            await self._prepare(worker)
        except WorkerLost as error:
            self._replace(worker, error)
            raise
        if worker in self._numbers:  # or it was lost while its last answer was in flight
            self._pool.monitor.watch(worker, self._replace, may_be_silent=False)
            self._dispatcher.add(worker)

    async def _prepare(self, worker: RayWorker) -> None:
        await worker.wait_started(self._pool.timeout_s)
        self._info = await worker.call("start", timeout_s=self._pool.timeout_s)
        await self._give_weights(worker)
        asleep = False
        while self._asleep != asleep:  # it changes while this engine follows
            if asleep:
                await worker.call("wake_weights", timeout_s=self._pool.timeout_s)
                await self._give_weights(worker)
                await worker.call("wake", timeout_s=self._pool.timeout_s)
            else:
                await worker.call("sleep", timeout_s=self._pool.timeout_s)
            asleep = not asleep

    async def _give_weights(self, worker: RayWorker) -> None:
        """To a new engine, the current ones; others may come while it is sent these."""
        given: int | None = None
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._pending)
            if self.transfer is None or self._version in (None, given):
                return
            version = self._version
            if await self.transfer.send_late(worker, version):
                given = version
            else:
                await self._other_version(version)

    async def _other_version(self, version: int) -> None:
        """Wait until engines are to have another."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._version != version)

    def _replace(self, worker: RayWorker, error: InfraError) -> None:
        """Start another worker in its slot. Called by all that find it lost; only the first call has an effect."""
        if (number := self._numbers.pop(worker, None)) is None:
            return
        self._dispatcher.remove(worker)
        self._pool.stop(worker)
        self.restarts += 1
        now = time.monotonic()
        self._recent = [*(at for at in self._recent if now - at < RESTART_WINDOW_S), now]
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

    async def _restart(self, number: int) -> None:
        started = time.monotonic()
        try:
            await self._start(number)
        except WorkerLost:
            return  # `_start` has called `_replace` for it
        except Exception as error:
            self._pool.fail(error)
            return
        logger.warning("rollout worker %d is replaced after %.1f s", number, time.monotonic() - started)
