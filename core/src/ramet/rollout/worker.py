"""The rollout worker: tasks in, groups out. Training, validation and evaluation all come through here.

It runs in one event loop with its engine. Groups are admitted while their complete budget fits
`rollout.max_concurrent`. The bound also covers the prefixes that the engine keeps for them, since a rollout leaves only
when its prefix may go.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.engines.protocol import Capability, Engine
from ramet.errors import raise_all
from ramet.event_loop import first_error
from ramet.plugins.component_checks import is_agent
from ramet.rollout.agents.service import AgentService
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.completion import Versions
from ramet.rollout.group import GroupScheduler, ScoreRollout
from ramet.rollout.group_context import GroupContext
from ramet.rollout.jobs import GroupJob, JobMaker
from ramet.rollout.method import Share, rollout_method
from ramet.rollout.metrics import RolloutMetrics
from ramet.rollout.observer import RolloutObserver
from ramet.rollout.plan import ResolvedPlan, RolloutPlan, RolloutRequest, StepDeadline
from ramet.rollout.progress import ProgressCounter, RolloutProgress
from ramet.rollout.stateful import ENVIRONMENT, fork_problems, replay_problems, step_component, tool_components
from ramet.rollout.tools.runner import ToolRunner
from ramet.rollout.tools.stats import ToolStats, tool_metrics
from ramet.rollout.watchdog import Watchdog
from ramet.types import BranchPolicy, Group, Need, RolloutStep, Task, Tool
from ramet.types.branch import policy_needs

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder

__all__ = ["RolloutPlan", "RolloutWorker"]
OnGroup = Callable[[Group], None]


class RolloutWorker:
    """Owns the runners of its tools, not its engine. All calls come from the engine's event loop."""

    def __init__(
        self,
        *,
        engine: Engine,
        encoder: Encoder,
        step: RolloutStep,
        branch_policy: BranchPolicy,
        tools: Mapping[str, tuple[Tool, ToolConfig]],
        config: RolloutConfig,
        system_prompt: SystemPrompt,
        seed: int,
        deterministic: bool,
        tools_in_template: bool = False,
        instruction: str = "",
        tool_sets: Mapping[str, Sequence[str]] | None = None,
        score: ScoreRollout | None = None,
        observer: RolloutObserver | None = None,
    ) -> None:
        """`tool_sets`: names that mean several of `tools`, wherever a task names its tools. `observer` hears what
        happens in every rollout.

        `score`: of one rollout, for branch policies that need rewards.

        Raises `ConfigError` for settings that cannot work together.
        """
        problems = RolloutPlan().resolved(config).problems(config.max_concurrent)
        if deterministic and Capability.DETERMINISTIC not in engine.info.capabilities:
            problems.append(f"run.deterministic: the engine {engine.info.name!r} cannot repeat its numbers; use torch")
        raise_all(problems)
        self.engine = engine
        self.encoder = encoder
        self.step = step
        self.branch_policy = branch_policy
        self.config = config
        self.seed = seed
        self.deterministic = deterministic
        self._score = score
        self._observer = observer
        self.watchdog = Watchdog()
        self.tools = {name: ToolRunner(name, *pair, encoder, self.watchdog) for name, pair in tools.items()}
        self.jobs = JobMaker(
            engine=engine,
            encoder=encoder,
            step=step,
            schemas={name: runner.schema for name, runner in self.tools.items()},
            tool_sets=tool_sets or {},
            config=config,
            system_prompt=system_prompt,
            tools_in_template=tools_in_template,
            instruction=instruction,
            takes_prefixes=Need.PREFIXES in policy_needs(branch_policy),
        )
        self._forked = (*step_component(step), *tool_components(tools))
        self.stateful = tool_components(tools) if is_agent(step) else self._forked
        self._agent = AgentService(step) if is_agent(step) else None
        self._admission = Admission(config.max_concurrent)
        self._metrics = RolloutMetrics(config.first_tokens)
        self._progress = ProgressCounter()
        self.method = rollout_method(branch_policy)
        if self.method is not None:
            self.method.join(self)

    async def run(
        self,
        request: RolloutRequest,
        *,
        on_group: OnGroup | None = None,
        versions: Versions | None = None,
    ) -> list[Group]:
        """Run all tasks; groups in their order, none if the plan keeps none. `on_group` is called for each as soon as
        it is complete. `versions`: of the weights that may sample, otherwise a rollout is masked; None: any.

        Every group has exactly `group_size` rollouts, or as many as were granted, masked ones included. Raises
        `PluginError` and `ConfigError`; all other failures mask the rollouts that they hit.
        """
        plan = request.plan.resolved(self.config)
        raise_all(
            [
                *plan.problems(self.config.max_concurrent),
                *self.jobs.unknown_tools(request.tasks),
                *self._fork_problems(plan),
                *(() if request.begin is None else replay_problems(self._forked)),
            ]
        )
        started = time.perf_counter()
        deadline = StepDeadline(self._step_seconds(request))
        if request.deadline_s is not None:
            deadline.left()  # the caller's clock is running
        jobs = self.jobs.jobs(request)
        if self._agent is not None:
            await self._agent.open()

        def done(group: Group) -> None:
            counts.total -= group.n_unused
            if plan.counted:
                self._metrics.add(group)
            if on_group is not None:
                on_group(group)

        with self.watchdog.watching(), self._progress.counting(sum(request.sizes(plan.group_size))) as counts:
            share = Share(
                step=request.step,
                jobs=jobs,
                plan=plan,
                deadline=deadline,
                versions=versions,
                counts=counts,
                done=done,
            )
            groups = await (self._play(share) if self.method is None else self.method.play(share))
        if plan.counted:
            self._metrics.seconds += time.perf_counter() - started
        return groups

    async def _play(self, share: Share) -> list[Group]:
        """Group by group, all at once; in the order of the jobs, none if the plan keeps none. Raises the first error
        of any.
        """
        runs: list[asyncio.Task[Group]] = []
        async with first_error(), asyncio.TaskGroup() as group:
            for job in share.jobs:
                run = group.create_task(self._run_group(job, share, group))
                runs += [run] if share.plan.kept else []
                await asyncio.sleep(0)  # the first groups' tools already run while later groups start
        return [run.result() for run in runs]

    def _step_seconds(self, request: RolloutRequest) -> float:
        if not request.plan.step_deadline:
            return math.inf
        return self.config.step_deadline_s if request.deadline_s is None else request.deadline_s

    async def _run_group(self, job: GroupJob, share: Share, tasks: asyncio.TaskGroup) -> Group:
        plan = share.plan if job.granted is None else job.granted.plan(share.plan)
        await self._admission.enter(plan.group_size)  # the watchdog has what the admitted ones wait for
        n_unreleased = plan.group_size

        def release(keys: Sequence[str]) -> None:
            nonlocal n_unreleased
            n_unreleased -= len(keys)
            self.engine.release(keys)
            self._admission.leave(len(keys))

        scheduler = GroupScheduler(
            job=job,
            policy=self._policy_of(job, plan),
            context=self._group_context(job.task, plan, share),
            step_ends_at=asyncio.get_running_loop().time() + share.deadline.left(),
            deterministic=self.deterministic,
            tasks=tasks,
            release=release,
            score=self._score,
        )
        try:
            group = await scheduler.run()
        finally:
            self._admission.leave(n_unreleased)  # rollouts that were never started
        share.done(group)
        return group

    def _policy_of(self, job: GroupJob, plan: ResolvedPlan) -> BranchPolicy:
        return self.branch_policy if plan.branch and job.begin is None else NoBranching()

    def _group_context(self, task: Task, plan: ResolvedPlan, share: Share) -> GroupContext:
        return GroupContext(
            engine=self.engine,
            encoder=self.encoder,
            tools=self.tools,
            task=task,
            schemas=self.jobs.schemas_of(task),
            watchdog=self.watchdog,
            plan=plan,
            seed=self.seed,
            step=self.step,
            config=self.config,
            stateful=tuple(
                component
                for component in self.stateful
                if (task.tools is None and task.schemas is None)
                or {ENVIRONMENT, *self.jobs.tools_of(task)} & {*component.users}
            ),
            versions=share.versions,
            counts=share.counts,
            observer=self._observer,
            agents=self._agent,
        )

    def _fork_problems(self, plan: ResolvedPlan) -> list[str]:
        return fork_problems(self._forked, self.branch_policy) if plan.branch else []

    def metrics(self) -> dict[str, float]:
        """Return the metrics of rollouts and tools since the last call."""
        return {**self._metrics.take(), **tool_metrics(self.take_tool_stats())}

    def progress(self) -> RolloutProgress:
        """Return the progress of the calls of `run` that have not returned; from any thread."""
        return self._progress.progress()

    def take_tool_stats(self) -> dict[str, ToolStats]:
        """Counts of each tool since the last call, to be added to those from other workers."""
        return {name: runner.take_stats() for name, runner in self.tools.items()}

    async def close(self) -> None:
        if self._agent is not None:
            await self._agent.close()
        for runner in self.tools.values():
            await runner.close()


class Admission:
    """How many rollouts are running at once: first come, first served. A large group is not overtaken by smaller ones.

    A group enters at once and leaves rollout by rollout.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, n: int) -> None:
        """Wait until n more rollouts fit. `n` must not exceed the capacity."""
        if not self._queue and n <= self.free:
            self.free -= n
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append((n, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(n)  # admitted and cancelled in the same moment
            else:
                self._queue = deque(entry for entry in self._queue if entry[1] is not turn)
            raise

    def leave(self, n: int) -> None:
        self.free += n
        while self._queue and self._queue[0][0] <= self.free:
            wanted, turn = self._queue.popleft()
            if turn.cancelled():
                continue
            self.free -= wanted
            turn.set_result(None)
