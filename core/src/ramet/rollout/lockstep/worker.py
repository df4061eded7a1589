"""The rollout worker of the released schedule. What `RolloutWorker` is to jobs, with rounds inside.

One call of `run` is one batch: under Ray each worker's share of a step is one. The worker's entropy table is never
cleared: it outlives batches, steps and validations, and is empty again in a process that is started anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from ramet.errors import raise_all
from ramet.event_loop import first_error
from ramet.rollout.completion import Versions
from ramet.rollout.jobs import task_names
from ramet.rollout.keys import stable_seed
from ramet.rollout.lockstep.checks import protocol_problems
from ramet.rollout.lockstep.monitoring import Monitor
from ramet.rollout.lockstep.policy import LockstepPolicy
from ramet.rollout.lockstep.sampling import RoundEngine
from ramet.rollout.lockstep.schedule import LockstepBatch
from ramet.rollout.lockstep.tools import ReleasedTools
from ramet.rollout.lockstep.turn_player import LockstepPrompt, TurnPlayer, TurnRules
from ramet.rollout.plan import ResolvedPlan, RolloutPlan
from ramet.rollout.record import GroupRecord
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import OnGroup, RolloutWorker
from ramet.types import BranchPolicy, Group, Task

logger = logging.getLogger(__name__)


class LockstepWorker(RolloutWorker):
    """Plays the rollouts of a `LockstepPolicy`."""

    def __init__(self, *, branch_policy: BranchPolicy, draw: Callable[[], float] | None = None, **options: Any) -> None:
        """`options`: those of `RolloutWorker`. `draw`: numbers in [0, 1) for the branch decisions; None: by the seed.

        Raises `ConfigError` for settings that cannot work together.
        """
        super().__init__(branch_policy=branch_policy, **options)
        raise_all(
            protocol_problems(
                self.step, [runner.schema for runner in self._tools.values()], [s.name for s in self._stateful]
            )
        )
        assert isinstance(self.step, Tags) and isinstance(branch_policy, LockstepPolicy)
        self.policy = branch_policy
        self.base: dict[int, float] = {}  # place in a batch -> entropy of the first segment ever sampled there
        self._draw = draw
        self._places = asyncio.Semaphore(self.config.max_concurrent)
        self._rules = TurnRules(
            encoder=self.encoder,
            tools=ReleasedTools(self._tools),
            config=self.config,
            result_tag=self.step.config.result,
            answer_tag=self.step.config.answer,
        )
        if self.deterministic:
            logger.warning(
                "the table of entropies begins empty in a resumed run, as in the released code: with "
                "run.deterministic=true a resumed run differs from one that was not interrupted"
            )

    async def run(
        self,
        tasks: Sequence[Task],
        *,
        step: int,
        plan: RolloutPlan | None = None,
        on_group: OnGroup | None = None,
        version: int | None = None,
        newest: Callable[[], int] | None = None,
        names: Sequence[str] | None = None,
        deadline_s: float | None = None,
        stored: Mapping[str, GroupRecord] | None = None,
    ) -> list[Group]:
        """As `RolloutWorker.run`, in rounds of all tasks. `on_group` is called for each when the last round is over.

        `stored` is not read: all of a batch starts from the prompts.
        """
        started = time.perf_counter()
        batch = await self.batch(
            tasks, step=step, plan=plan, version=version, newest=newest, names=names, deadline_s=deadline_s
        )
        groups = batch.groups()
        counted = batch.player.engine.plan.counted
        if counted:
            self._metrics.seconds += time.perf_counter() - started
        for group in groups:
            if counted:
                self._metrics.add(group)
            if on_group is not None:
                on_group(group)
        return groups if batch.player.engine.plan.kept else []

    async def batch(
        self,
        tasks: Sequence[Task],
        *,
        step: int,
        plan: RolloutPlan | None = None,
        version: int | None = None,
        newest: Callable[[], int] | None = None,
        names: Sequence[str] | None = None,
        deadline_s: float | None = None,
    ) -> LockstepBatch:
        """One batch, played to its end. Arguments are those of `run`."""
        chosen = (plan or RolloutPlan()).resolved(self.config)
        raise_all([*chosen.problems(self.config.max_concurrent), *self._jobs.unknown_tools(tasks)])
        ends_at = asyncio.get_running_loop().time() + self._step_seconds(chosen, deadline_s)
        versions = None if version is None else Versions(version, newest or (lambda: version))
        prompts = [
            LockstepPrompt(task=job.task, name=job.name, segment=job.prompt, tools=self._jobs.schemas_of(job.task))
            for job in self._jobs.jobs(tasks, task_names(tasks) if names is None else names, step)
        ]
        engine = self._round_engine(chosen, versions)
        with self._watchdog.watching(), self._progress.counting(len(prompts) * chosen.group_size) as counts:
            batch = LockstepBatch(
                player=TurnPlayer(prompts=prompts, rules=self._rules, engine=engine, base=self.base, counts=counts),
                policy=self.policy,
                step=step,
                base=self.base,
                draw=self._draw or self._seeded(chosen, step, prompts),
                step_ends_at=ends_at,
            )
            async with first_error():
                await batch.run(await self._roots(prompts, engine, step, ends_at))
        return batch

    def _round_engine(self, plan: ResolvedPlan, versions: Versions | None) -> RoundEngine:
        return RoundEngine(
            engine=self.engine,
            plan=plan,
            seed=self.seed,
            first_tokens=self.config.first_tokens,
            eos_ids=self.encoder.eos_ids,
            versions=versions,
            watchdog=self._watchdog,
            places=self._places,
        )

    async def _roots(
        self, prompts: Sequence[LockstepPrompt], engine: RoundEngine, step: int, ends_at: float
    ) -> list[int]:
        """With how many rows each prompt starts. Where nothing may branch, as in validation, with all of them.

        There the release plays a monitored rollout too, and its result is always 1, of 1; here it is left out.
        """
        size, policy = engine.plan.group_size, self.policy
        if not engine.plan.branch:
            return [size] * len(prompts)
        if policy.probe_tokens is None:
            return [policy.roots(size)] * len(prompts)
        most = asyncio.get_running_loop().time() + self.config.deadline_s
        monitor = Monitor(prompts=prompts, rules=self._rules, engine=engine, step=step, ends_at=min(ends_at, most))
        found = await monitor.run(policy.probe_tokens)
        return [policy.monitored_roots(size, one.root, one.segments) for one in found]

    def _seeded(self, plan: ResolvedPlan, step: int, prompts: Sequence[LockstepPrompt]) -> Callable[[], float]:
        """The draws of a batch. Shares of one step differ by the names of their tasks."""
        return Random(stable_seed("lockstep", self.seed, plan.salt, step, *(one.name for one in prompts))).random
