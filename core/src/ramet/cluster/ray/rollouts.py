"""`ramet.cluster.interfaces.Rollouts` over several workers: whole groups go to the least loaded.

A worker that dies, or is silent, loses the groups that were running on it: another takes its place (`rollout_workers`),
and the groups are run again with the same seeds. Part of a group is never returned.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from ramet.cluster.counts import Counts, total_metrics
from ramet.cluster.interfaces import OnGroup
from ramet.cluster.ray.rollout_workers import RolloutWorkers
from ramet.cluster.ray.worker import RayWorker
from ramet.cluster.ray.worker_pool import WorkerPool
from ramet.components.toolbox import ToolNames
from ramet.config.schema import Config
from ramet.engines.protocol import EngineInfo
from ramet.errors import InfraError
from ramet.event_loop import first_error
from ramet.rollout.jobs import task_names
from ramet.rollout.method import RolloutMethod
from ramet.rollout.metrics import RolloutMetrics
from ramet.rollout.plan import RolloutPlan, StepDeadline
from ramet.rollout.progress import ProgressCounter, RolloutProgress, RunCounts, summed
from ramet.rollout.record import GroupRecord
from ramet.types import Group, Task

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
        policy's, which plays all groups of a worker together.
        """
        self.workers = RolloutWorkers(pool, branching=branching, tools=tools)
        self._score_s = score_s
        self._method = method
        self._pool = pool
        self._config = pool.config
        self._owns_pool = owns_pool
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
            await pool.unless_failed(rollouts.workers.open({}))
        except BaseException:
            await pool.close()
            raise
        return rollouts

    @property
    def info(self) -> EngineInfo:
        return self.workers.info

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
        await self.workers.wake()
        started = time.monotonic()
        runs: list[asyncio.Task[list[Group]]] = []
        deadline = StepDeadline(self._config.rollout.step_deadline_s) if plan.step_deadline else None
        with self._progress.counting(len(tasks) * self.group_size(plan)) as counts:
            async with first_error(), asyncio.TaskGroup() as running:
                for part in self._parts(tasks):
                    run = running.create_task(self._run_part(part, step, plan, deadline, on_group, counts, stored))
                    runs += [run] if plan.kept else []
        if plan.counted:
            self._metrics.seconds += time.monotonic() - started
        return [group for run in runs for group in run.result()]

    def _parts(self, tasks: Sequence[Task]) -> list[list[tuple[Task, str]]]:
        """What workers are given at once, tasks with their names: a group, or a worker's share of the step."""
        named = list(zip(tasks, task_names(tasks), strict=True))
        n = len(named) if self._method is None else min(self._config.cluster.rollout_workers, len(named))
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
        the time of two rollouts: one that it may wait for in its worker, and its own, which start together. Played by
        a method, rollouts of a group may start one after the other.
        """
        rollouts = self.group_size(plan)
        size = rollouts * len(part)
        again = False
        while True:
            worker = await self.workers.dispatcher.acquire(size, first=again)
            one_by_one = 2 if self._method is None else 1 + rollouts
            left, key = one_by_one * self._config.rollout.deadline_s, "rollout.deadline_s"
            if deadline is not None:
                left, key = deadline.left(), "rollout.step_deadline_s"
            patience = PATIENCE_S + (self._score_s if plan.branch else 0.0)  # rewards have time-outs of their own
            try:
                groups = await self._call(worker, part, step, plan, left, stored, timeout_s=left + patience, key=key)
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
        kept = {task.id: stored[task.id] for task in tasks if task.id in stored}
        groups: list[Group] = await worker.call(
            "run_groups", tasks, names, step, plan, left, kept, timeout_s=timeout_s, key=key
        )
        return groups

    async def metrics(self) -> dict[str, float]:
        """Rollouts are counted here, where all groups pass; tools and engines by their workers. Counts add up, and
        percentiles of tools are those of all calls. The counts of a lost worker are lost.
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
        found = [worker.progress for worker in self.workers.dispatcher.workers]
        running = summed(one for one in found if isinstance(one, RolloutProgress))
        return replace(back + running, total=back.total, done=min(back.total, back.done + running.done))

    async def close(self) -> None:
        if self._owns_pool:
            await self._pool.close()
