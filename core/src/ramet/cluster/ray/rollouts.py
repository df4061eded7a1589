"""`ramet.cluster.interfaces.Rollouts` over several workers: complete groups go to the least loaded.

A worker that dies, or is silent, loses the groups that were running on it: another takes its place (`rollout_workers`),
and the groups are run again with the same seeds. Part of a group is never returned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from ramet.cluster.counts import Counts, total_metrics
from ramet.cluster.interfaces import OnGroup, Recorder
from ramet.cluster.ray.actors import RolloutActor
from ramet.cluster.ray.group_parts import GroupParts
from ramet.cluster.ray.rollout_workers import RolloutWorkers
from ramet.cluster.ray.worker import Timeout
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
        """A worker is given one group at once, or with a method its share of the step."""
        plan, n_tasks = request.plan, len(request.tasks)
        parts = request.parts(n_tasks if self._method is None else self._config.cluster.rollout_workers)
        await self.workers.wake()
        started = time.monotonic()
        runs: list[asyncio.Task[list[Group]]] = []
        deadline = StepDeadline(self._config.rollout.step_deadline_s) if plan.step_deadline else None
        with self._progress.counting(sum(request.sizes(self.group_size(plan)))) as counts:
            async with first_error(), asyncio.TaskGroup() as running:
                for part in parts:
                    run = running.create_task(self._run_part(part, deadline, on_group, counts))
                    runs += [run] if plan.kept else []
        if plan.counted:
            self._metrics.seconds += time.monotonic() - started
        return [group for run in runs for group in run.result()]

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
            try:
                ticket = self.parts.next_ticket() if plan.recorded else None
                asked = replace(part, plan=replace(plan, kept=True), deadline_s=allowed_s, ticket=ticket)
                groups = await worker.call(Timeout(allowed_s + patience, key), RolloutActor.run_groups, asked)
                if ticket is not None:
                    self.parts.note(worker, ticket, groups)
                break
            except InfraError as error:  # lost or stuck: a worker masks all other infrastructure failures
                self.workers.replace(worker, error)
                again = True
            finally:
                self.workers.dispatcher.release(worker, size)
        for group in groups:
            if plan.counted:
                self._metrics.add(group)
            counts.total -= group.n_unused
            counts.done += len(group.rollouts)
            counts.forks += sum(rollout.parent is not None for rollout in group.rollouts)
            if on_group is not None:
                on_group(group)
        return groups

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
