"""`ramet.cluster.interfaces.Rollouts` over several workers: complete groups go to the least loaded.

A worker that dies, or is silent, loses the groups that were running on it: another takes its place (`rollout_workers`),
and the groups are run again with the same seeds. Part of a group is never returned.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from ramet.cluster.counts import Counts, total_metrics
from ramet.cluster.interfaces import OnGroup, Recorder
from ramet.cluster.ray.actors import RolloutActor
from ramet.cluster.ray.group_parts import GroupParts, GroupStore
from ramet.cluster.ray.played_groups import fetched
from ramet.cluster.ray.rollout_workers import RolloutWorkers
from ramet.cluster.ray.worker import RayWorker, Timeout
from ramet.cluster.ray.worker_pool import WorkerPool
from ramet.components.toolbox import ToolNames
from ramet.config.schema import Config
from ramet.engines.protocol import EngineInfo
from ramet.errors import InfraError
from ramet.event_loop import first_error
from ramet.rollout.method import RolloutMethod
from ramet.rollout.metrics import RolloutMetrics
from ramet.rollout.plan import RolloutPlan, RolloutRequest, StepDeadline
from ramet.rollout.progress import ProgressCounter, RolloutProgress, RunCounts, summed
from ramet.types import Group

PATIENCE_S = 60.0  # for a group whose time is over to come back masked


class RayRollouts:
    """Groups of rollouts on the workers of a run, `workers`."""

    def __init__(
        self,
        pool: WorkerPool,
        *,
        branching: bool,
        tools: ToolNames,
        owns_pool: bool = False,
        score_s: float = 0.0,
        method: RolloutMethod | None = None,
    ) -> None:
        """`score_s`: how long rewards may take where rollouts are scored while their group runs. `method`: the branch
        policy's, which runs all groups of a worker together.
        """
        self.workers = RolloutWorkers(pool, branching=branching, tools=tools)
        self._score_s = score_s
        self._method = method
        self._pool = pool
        self._config = pool.config
        self._owns_pool = owns_pool
        self._metrics = RolloutMetrics(pool.config.rollout.first_tokens)
        self._kept: list[Counts] = []  # for `metrics`, from before uncounted work
        self._restarts_reported = 0
        self.parts = GroupParts(pool.timeout_s)
        self._progress = ProgressCounter()  # of groups that are back, and of how many there will be

    @classmethod
    async def start(cls, config: Config, *, folder: Path, tools: ToolNames) -> RayRollouts:
        """Engines without policy and forks, for evaluation. Raises `ConfigError`."""
        pool = WorkerPool(config, with_policy=False, folder=folder, shares_limiters=tools.are_started)
        try:
            await pool.reserve()
            rollouts = cls(pool, branching=False, tools=tools, owns_pool=True)
            await pool.unless_failed(rollouts.workers.open({}))
        except BaseException:
            await pool.close()
            raise
        return rollouts

    @property
    def info(self) -> EngineInfo:
        return self.workers.info

    @property
    def recorder(self) -> Recorder:
        return self.parts.write

    def group_size(self, plan: RolloutPlan) -> int:
        return plan.resolved(self._config.rollout).group_size

    async def run(self, request: RolloutRequest, *, on_group: OnGroup | None = None) -> list[Group]:
        return await self._pool.unless_failed(self._run(request, on_group))

    async def _run(self, request: RolloutRequest, on_group: OnGroup | None) -> list[Group]:
        """A worker is given one group at once, or with a method its share of the step. Groups that are lost with their
        node before all are complete are run again.
        """
        plan, n_tasks = request.plan, len(request.tasks)
        parts = request.parts(n_tasks if self._method is None else self._config.cluster.rollout_workers)
        await self.workers.wake()
        started = time.monotonic()
        deadline = StepDeadline(self._config.rollout.step_deadline_s) if plan.step_deadline else None
        with self._progress.counting(sum(request.sizes(self.group_size(plan)))) as counts:
            run = partial(self._run_parts, deadline=deadline, on_group=on_group, counts=counts)
            groups = await run(parts)
            while lost := [i for i, own in enumerate(groups) if await self._are_lost(own)]:
                again = await run([parts[i] for i in lost])
                for i, own in zip(lost, again, strict=True):
                    groups[i] = own
        if plan.counted:
            self._metrics.seconds += time.monotonic() - started
            for own in groups if plan.scored else ():
                self._count(own)
        return [group for own in groups for group in own]

    async def _are_lost(self, groups: Sequence[Group]) -> bool:
        return await self.parts.are_lost(groups, self.workers.dispatcher.workers)

    async def _run_parts(
        self,
        parts: Sequence[RolloutRequest],
        deadline: StepDeadline | None,
        on_group: OnGroup | None,
        counts: RunCounts,
    ) -> list[list[Group]]:
        """Return the groups of each part; of no part if the plan keeps none."""
        runs: list[asyncio.Task[list[Group]]] = []
        async with first_error(), asyncio.TaskGroup() as running:
            for part in parts:
                run = running.create_task(self._run_part(part, deadline, on_group, counts))
                runs += [run] if part.plan.kept else []
        return [run.result() for run in runs]

    async def _run_part(
        self,
        part: RolloutRequest,
        deadline: StepDeadline | None,
        on_group: OnGroup | None,
        counts: RunCounts,
    ) -> list[Group]:
        """Run one part, again each time its worker is lost. `deadline` None: the step has none, so a group has the time
        of two rollouts: one that it may wait for in its worker, and its own, which start together. With a rollout
        method, rollouts of a group may start one after the other.
        """
        plan, rollouts = part.plan, self.group_size(part.plan)
        size = sum(part.sizes(rollouts))
        again = False
        while True:
            worker = await self.workers.dispatcher.acquire(size, first=again)
            one_by_one = 2 if self._method is None else 1 + rollouts
            allowed_s, key = one_by_one * self._config.rollout.deadline_s, "rollout.deadline_s"
            if deadline is not None:
                allowed_s, key = deadline.left(), "rollout.step_deadline_s"
            patience = PATIENCE_S + (self._score_s if plan.branch else 0.0)  # rewards have their own time-outs
            ticket = self.parts.next_ticket() if plan.recorded else None
            asked = replace(part, plan=replace(plan, kept=True, counted=False), deadline_s=allowed_s, ticket=ticket)
            try:
                groups = await self._play(worker, asked, Timeout(allowed_s + patience, key), size)
                break
            except InfraError:  # lost or stuck: a worker masks all other infrastructure failures
                again = True
        if plan.counted and not plan.scored:  # those may be lost until all groups are complete
            self._count(groups)
        for group in groups:
            counts.total -= group.n_unused
            counts.done += len(group.rollouts)
            counts.forks += sum(rollout.parent is not None for rollout in group.rollouts)
            if on_group is not None:
                on_group(group)
        return groups

    def _count(self, groups: Sequence[Group]) -> None:
        for group in groups:
            self._metrics.add(group)

    async def _play(self, worker: RayWorker, request: RolloutRequest, timeout: Timeout, size: int) -> list[Group]:
        """Let a worker run groups of `size` rollouts, and score them if the plan says so. A worker that fails is
        replaced. Raises `InfraError` if the groups must be run again.
        """
        store: GroupStore | None = None
        try:
            if request.plan.scored:
                counted, store = await worker.call(timeout, RolloutActor.run_counted_groups, request)
                groups: list[Group] = list(counted)
            else:
                groups = await worker.call(timeout, RolloutActor.run_groups, request)
        except InfraError as error:
            self.workers.replace(worker, error)
            raise
        finally:
            self.workers.dispatcher.release(worker, size)
        if (ticket := request.ticket) is not None:
            if store is not None:
                groups, store = await self._scored(worker, ticket, groups, store)
            self.parts.note(worker, ticket, groups, store)
        return groups

    async def _scored(
        self, worker: RayWorker, ticket: int, groups: Sequence[Group], store: GroupStore
    ) -> tuple[list[Group], GroupStore | None]:
        """Let the worker score its groups, which takes none of its room. Where it is lost meanwhile, return them
        complete, and the driver's rewards score them. Raises `PartLost` if they are lost with it.
        """
        try:
            # Rewards have their own time-outs.
            scores = await worker.call(math.inf, RolloutActor.score_groups, ticket, len(groups))
        except InfraError as error:
            self.workers.replace(worker, error)
            [complete] = await asyncio.to_thread(fetched, [store])
            return complete, None
        return [replace(group, scores=own) for group, own in zip(groups, scores, strict=True)], store

    async def metrics(self) -> dict[str, float]:
        """Rollouts are counted here, where all groups pass; tools and engines by their workers. Counts add up, and
        percentiles of tools are over all calls. The counts of a lost worker are lost.
        """
        kept, self._kept = self._kept, []
        counted = total_metrics([*kept, *await self.workers.counts()])
        restarts, self._restarts_reported = self.workers.restarts - self._restarts_reported, self.workers.restarts
        return {**self._metrics.take(), **counted, "rollout/restarts": float(restarts)}

    @asynccontextmanager
    async def uncounted(self) -> AsyncIterator[None]:
        self._kept += await self.workers.counts()
        yield
        await self.workers.counts()

    def progress(self) -> RolloutProgress:
        """Groups that are back are counted here, the others by their workers, as of their last pings."""
        back = self._progress.progress()
        reports = [worker.progress for worker in self.workers.dispatcher.workers]
        running = summed(report for report in reports if isinstance(report, RolloutProgress))
        return replace(back + running, total=back.total, done=min(back.total, back.done + running.done))

    async def close(self) -> None:
        if self._owns_pool:
            await self._pool.close()
