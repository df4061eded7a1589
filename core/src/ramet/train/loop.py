"""The loop of one training run: rollouts → rewards → advantages → record → update → weight sync → checkpoint.

The order inside a step makes a run resume exactly: a step is a function of the state before it. An interrupted step is
redone from its start and gives the same numbers (deterministic mode) or the same prompts, seeds and draws (otherwise).
Its groups are written during the update, and are on disk before the new weights are used. With `train.staleness` groups
of later steps run meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from ramet.components.build import may_move
from ramet.errors import PluginError, RametError
from ramet.event_loop import first_error
from ramet.io import repeats
from ramet.plugins import origin
from ramet.policy.checkpoint.store import CheckpointScore
from ramet.policy.errors import TrainingDiverged
from ramet.policy.rank import PolicyRank
from ramet.rollout.branching.budgets import step_budget
from ramet.rollout.plan import GrantedGroup, RolloutPlan, RolloutRequest
from ramet.rollout.prefixes import prefixes_with_room
from ramet.rollout.scoring import ScoredGroup, check_failures
from ramet.tracking.trackers import SAMPLES
from ramet.train.admission import AdmittedRollouts, PlayedGroup, TaskStream
from ramet.train.budgeted import BudgetedRollouts
from ramet.train.groups import (
    StepClock,
    check_infrastructure,
    masked_limit,
    play,
    reward_metrics,
    source_metrics,
    warn_of_broken_tools,
    warn_of_silence,
)
from ramet.train.learning import Learner
from ramet.train.preemption import Dropped
from ramet.train.progress import REWARDS, SAVING, TrainProgress
from ramet.train.run import TrainRun, TrainState
from ramet.train.samples import SamplePrinter
from ramet.train.saving import Saver
from ramet.train.step_rollouts import DataPosition, PlayedStep, StepRollouts, StepwiseRollouts
from ramet.train.validation import Validation
from ramet.types import Group, Need, PrefixView, Task

logger = logging.getLogger(__name__)
RESCUE_S = 900.0  # for the checkpoint of a run that fails
N_SAMPLES = 2  # rollouts that `samples` prints after a step: the best and the worst
GREEDY = RolloutPlan(group_size=1, temperature=0.0, top_p=1.0, top_k=0, branch=False, salt="greedy", counted=False)


class Loop:
    """The steps of one run; `run` does the remaining ones."""

    def __init__(self, run: TrainRun) -> None:
        config, prepared = run.config, run.prepared
        self.config = config
        self.backend = run.backend
        self.critic = run.critic
        self.tracker = run.tracker
        self.state = run.state
        self.prefixes = run.prefixes
        self.preemption = run.preemption
        self.total_steps = prepared.total_steps
        self.scorer = prepared.components.scorer
        self.estimator = prepared.components.advantage
        self.learner = Learner(
            config,
            folder=run.folder,
            ranks=run.backend.policy,
            critic=run.critic,
            estimator=self.estimator,
            needs_reference=run.policy.needs_reference,
            state=run.state,
            preemption=run.preemption,
            learn_groups=run.backend.learn_groups,
            recorder=run.backend.rollouts.recorder,
        )
        self.progress = TrainProgress(run.backend, total_steps=self.total_steps, done=run.state.step)
        self.samples = SamplePrinter(N_SAMPLES if SAMPLES in config.trackers else 0, seed=config.run.seed)
        self.saver = Saver(
            run.checkpoints,
            self._stage,
            every=config.train.save_every,
            last=self.total_steps,
            saved=run.state.step,
            in_background=config.train.async_save,
        )
        self.validation = Validation(config, run.backend.rollouts, self.scorer, prepared.valid, folder=run.folder)
        self._save_s = 0.0  # seconds that the last step spent on its checkpoint
        self._score: CheckpointScore | None = None  # of the weights after `state.step`, by train.keep_best
        self.plan = RolloutPlan(
            group_size=config.rollout.group_size,
            temperature=config.rollout.temperature,
            branch=True,
            salt="train",
            counted=not config.train.staleness,  # a step takes some of the groups that end meanwhile
            recorded=True,
            scored=self._keeps_tokens_in_workers(run),
        )
        self.step_rollouts = self._step_rollouts(run)

    def _keeps_tokens_in_workers(self, run: TrainRun) -> bool:
        """Whether nothing in this process reads the tokens and texts of a step's groups."""
        config, components = run.config, run.prepared.components
        read_here = (
            run.prefixes is not None
            or SAMPLES in config.trackers
            or step_budget(config.train.budget, components.branch_policy) is not None
        )
        return self.learner.learns_elsewhere and may_move(components.scorer.rewards) and not read_here

    def _step_rollouts(self, run: TrainRun) -> StepRollouts:
        """Continue the draws where the state's ended."""
        train, state, tasks, sampler = self.config.train, run.state, run.prepared.tasks, run.prepared.sampler
        if state.sampler:
            sampler.restore(state.sampler)
        budget = step_budget(train.budget, run.prepared.components.branch_policy)
        if budget is not None:
            return BudgetedRollouts(
                self._play_granted,
                budget,
                tasks,
                sampler,
                config=self.config,
                prefixes=self._prefix_views,
                outcomes=state.outcomes,
            )
        size, rounds = train.tasks_per_step, train.resample_rounds
        by = [name for name, reward in self.config.rewards.items() if reward.resample]
        if not train.staleness:
            return StepwiseRollouts(self._play, tasks, sampler, tasks_per_step=size, rounds=rounds, resample_by=by)
        next_group = state.step * size if state.next_group is None else state.next_group
        start = DataPosition(sampler=state.sampler, next_group=next_group, block=tuple(state.block))
        return AdmittedRollouts(
            self._play_group,
            TaskStream(tasks, sampler, block_size=size, start=start),
            tasks_per_step=size,
            staleness=train.staleness,
            rounds=rounds,
            done=state.step,
            last=self.total_steps,
            first_tokens=self.config.rollout.first_tokens,
            resample_by=by,
        )

    async def run(self) -> TrainState:
        """Do all remaining steps, or until a stop is asked for. The last one is always saved."""
        first = self.state.step
        try:
            if self.state.step == 0 and self.validation.is_due(0):
                self.tracker.log(0, await self.preemption.drop(self._validate(0)))
            await self._validate_again()
            self.progress.restart_clock()
            while self.state.step < self.total_steps:
                self.preemption.check()
                await self._step(self.state.step + 1)
        except Dropped:
            self.progress.stopping()
            logger.warning("stopped after step %d of %d", self.state.step, self.total_steps)
            await self.saver.save(self.state.step)
        except TrainingDiverged as error:
            self.progress.stopping()
            if not error.mid_step and self.critic is None:  # skipped updates left the weights as they were
                await self.saver.save(self.state.step)
            raise
        finally:
            repeats.report(logger, self.state.step - first)
            await self.step_rollouts.cancel()
            await self.saver.end()
        return self.state

    async def _step(self, step: int) -> None:
        """Run the rollouts, learn and use the new weights; then report, and save if it is time."""
        started, clock = time.monotonic(), StepClock()
        unsynced: Exception | None = None  # what kept the weights from the engines or from validation
        async with self._unless_a_group_fails():
            with self.progress.doing(REWARDS):
                played = await self.preemption.drop(self.step_rollouts.take(step))
            metrics = {**reward_metrics(played.all), **source_metrics(played.all)}
            metrics |= {**await self.backend.rollouts.metrics(), **played.metrics}
            metrics["group/replaced"] = float(len(played.replaced))
            warn_of_broken_tools(step, metrics)
            await self._check(step, played)
            clock.lap("rollout")
            if self.learner.min_group > 1:
                warn_of_silence(step, played.groups)
            with self.progress.doing("greedy baseline"):
                greedy = await self.preemption.drop(self._greedy_rewards(played, step))
            learned = await self.learner.learn(step, played, greedy, clock)
            if taken := sorted(metrics.keys() & learned.keys()):
                raise PluginError(
                    f"advantage estimator {origin(self.estimator)}: its metrics name {', '.join(taken)}, which the run "
                    "logs itself: choose other names, such as advantage/NAME"
                )
            metrics |= learned
            metrics |= self._store_prefixes(step, played)
            try:
                metrics |= await self._use_weights(step, clock)
                self.step_rollouts.trained(step)
            except Dropped:
                logger.warning("step %d: no time left for its weight sync and validation; its metrics lack them", step)
            except Exception as error:
                unsynced = error
        await self._finish(step, played, metrics, clock, started, unsynced)

    @asynccontextmanager
    async def _unless_a_group_fails(self) -> AsyncIterator[None]:
        """Cancel the block as soon as a group fails that a later step would take, since the run cannot continue then,
        and raise the group's error. A run that is to stop needs no more groups: it saves its state.
        """

        async def watch() -> None:
            try:
                await self.step_rollouts.failed()
            except Exception:
                if not self.preemption.asked:
                    raise

        async with first_error(), asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch())
            yield
            watching.cancel()

    def _store_prefixes(self, step: int, played: PlayedStep) -> dict[str, float]:
        """Keep this step's groups for the steps after it. Returns what this one could start from, as metrics."""
        if self.prefixes is None:
            return {}
        metrics = self.prefixes.metrics()
        for i, group in enumerate(played.groups):
            self.prefixes.add(played.key_steps[i] if played.key_steps else step, [group])
        return metrics

    async def _use_weights(self, step: int, clock: StepClock) -> dict[str, float]:
        """Give the new weights to the engine, and validate them if it is time."""
        with self.progress.doing("weight sync"):
            await self.preemption.finish(self.backend.sync_weights(step))
        clock.lap("sync")
        if not self.validation.is_due(step):
            return {}
        metrics = await self.preemption.finish(self._validate(step))
        clock.lap("valid")
        return metrics

    async def _validate_again(self) -> None:
        """Validate what a stop left out, or a step before `train.keep_best` was set: otherwise the checkpoint that
        this run continues from could not be the best.
        """
        step, checkpoints = self.state.step, self.saver.checkpoints
        if not (step and checkpoints.keep_best and self.validation.is_due(step)) or checkpoints.score(step) is not None:
            return
        metrics = await self.preemption.drop(self._validate(step))
        self.tracker.log(step, metrics)
        if (score := self.validation.score(step, metrics)) is not None:
            checkpoints.add_score(step, score)

    async def _validate(self, step: int) -> dict[str, float]:
        """Validate while no step runs, so that its counts do not mix with the steps' counts."""
        async with self.step_rollouts.paused():
            with self.progress.doing("validation", validated=step):
                return await self.validation(step)

    async def _play(self, tasks: list[Task], step: int, unscored: list[Group] | None = None) -> list[ScoredGroup]:
        return await play(self.backend.rollouts, self.scorer, self._request(tasks, step), unscored=unscored)

    def _request(self, tasks: list[Task], step: int) -> RolloutRequest:
        stored = {} if self.prefixes is None else self.prefixes.of(tasks)
        return RolloutRequest(tasks=tasks, step=step, plan=self.plan, stored=stored)

    async def _play_granted(self, tasks: list[Task], step: int, granted: Sequence[GrantedGroup]) -> list[ScoredGroup]:
        """Run groups of a step budget. A task's groups have the same name, and roots of different numbers."""
        request = replace(self._request(tasks, step), granted=granted, names=[task.id for task in tasks])
        return await play(self.backend.rollouts, self.scorer, request)

    def _prefix_views(self, task: Task) -> tuple[PrefixView, ...]:
        """The stored prefixes that rollouts of a task may begin with, in the order of the workers' numbers."""
        stored = None if self.prefixes is None else self.prefixes.of([task]).get(task.id)
        limits = self.config.rollout
        return () if stored is None else tuple(prefix.view for prefix in prefixes_with_room(stored, limits))

    async def _play_group(self, task: Task, step: int) -> PlayedGroup:
        """Run a group, and its greedy rollout if needed: a step would wait for that if it began after all groups."""
        unscored: list[Group] = []
        (scored,) = await self._play([task], step, unscored)
        greedy = await self._play_greedy([task], step) if self._needs_greedy else []
        return PlayedGroup(scored=scored, group=unscored[0], greedy=tuple(greedy))

    async def _check(self, step: int, played: PlayedStep) -> None:
        """Stop if too much failed; the groups are on disk then, so that the cause can be found."""
        try:
            check_failures(played.all, self.scorer.rewards)
            check_infrastructure(played.all, masked_limit(self.config.rollout))
        except RametError:
            await self.learner.record(step, played)
            raise

    @property
    def _needs_greedy(self) -> bool:
        return Need.GREEDY_ROLLOUT in self.estimator.needs

    async def _greedy_rewards(self, played: PlayedStep, step: int) -> list[float | None] | None:
        """One greedy rollout per group, for estimators that use it as the baseline (ReMax). None: masked."""
        if not self._needs_greedy:
            return None
        if played.greedy:
            return list(played.greedy[: len(played.groups)])
        async with self.backend.rollouts.uncounted():
            return await self._play_greedy([group.task for group in played.groups], step)

    async def _play_greedy(self, tasks: list[Task], step: int) -> list[float | None]:
        request = RolloutRequest(tasks=tasks, step=step, plan=GREEDY)
        played = await play(self.backend.rollouts, self.scorer, request)
        return [group.rollouts[0].score for group in played]

    async def _finish(
        self,
        step: int,
        played: PlayedStep,
        metrics: dict[str, float],
        clock: StepClock,
        started: float,
        unsynced: Exception | None,
    ) -> None:
        """Report, then save if it is time. The other way round a kill in between would lose the report for good: what
        was reported after the last checkpoint is redone, and trackers are rewound first.
        """
        metrics |= clock.metrics()
        metrics["time/save_s"] = self._save_s  # of the step before
        metrics["time/step_s"] = time.monotonic() - started
        self.tracker.log(step, metrics)
        self.samples(step, played.groups)
        self.progress.step_done(step)
        self.state.step = step
        self._score = self.validation.score(step, metrics)
        position = self.step_rollouts.position_after(step)
        self.state.sampler, self.state.next_group = position.sampler, position.next_group
        self.state.block, self.state.outcomes = list(position.block), position.outcomes
        self.state.seconds += time.monotonic() - started
        if unsynced is not None:
            await self._rescue(step)
            raise unsynced
        saving = time.monotonic()
        with self.progress.doing(SAVING):
            await self.saver.save_if_due(step, self._score)
        self._save_s = time.monotonic() - saving

    async def _rescue(self, step: int) -> None:
        """Save a step that was learned, before what came after it ends the run; ranks that hang are not waited for."""
        self.progress.stopping()
        try:
            async with asyncio.timeout(RESCUE_S):
                await self.saver.save(step)
        except Exception as error:
            logger.warning("CHECKPOINT OF STEP %d NOT SAVED: %s: %s", step, type(error).__name__, error)
        else:
            logger.warning("what was learned in step %d is saved; the run ends, since the step could not be", step)

    async def _stage(self, waited_for: bool) -> Callable[[Path], None]:
        await self.backend.policy.call(PolicyRank.stage, waited_for)
        state, score = replace(self.state), self._score
        prefixes = None if self.prefixes is None else self.prefixes.copy()

        def write(folder: Path) -> None:
            self.backend.policy.write_staged(folder)
            state.save(folder)
            if prefixes is not None:
                prefixes.save(folder)
            if score is not None:
                score.write(folder)

        return write
