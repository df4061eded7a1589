"""The loop of one training run: rollouts → rewards → advantages → record → update → weight sync → checkpoint.

The order inside a step is what makes a run resume exactly: a step is a function of the state before it, so a step that
was cut anywhere is redone from its start and gives the same numbers (deterministic mode) or the same prompts, seeds and
draws (otherwise). Its groups are on disk before the update. With `train.staleness` the rollouts of later steps are
played meanwhile.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ramet.cluster.interfaces import Backend
from ramet.components.build import build_advantage, build_scorer
from ramet.config.schema import Config, OldLogprobs
from ramet.data.sampler import Sampler
from ramet.errors import PluginError, RametError
from ramet.plugins import origin
from ramet.policy.batching.rows import Floats, Row, row_metrics, rows_of
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.checkpoint.store import Checkpoints, CheckpointScore
from ramet.policy.errors import TrainingDiverged
from ramet.policy.spec import CriticSpec
from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, check_failures
from ramet.rollout.worker import RolloutPlan
from ramet.train.algorithm import estimate
from ramet.train.async_rollouts import AsyncRollouts
from ramet.train.choosing import PlayedStep, TaskChooser
from ramet.train.groups import check_infrastructure, play
from ramet.train.preemption import Dropped, Preemption
from ramet.train.saving import Saver
from ramet.train.state import TrainState
from ramet.train.step_metrics import lag_metrics, reward_metrics, warn_of_silence
from ramet.train.validation import Validation, ValidData
from ramet.types import Need, Task, Tracker

logger = logging.getLogger(__name__)
GREEDY = RolloutPlan(group_size=1, temperature=0.0, top_p=1.0, top_k=0, branch=False, salt="greedy", counted=False)


class Loop:
    """One run. Everything it is given is built and checked; `run` plays the steps that are left."""

    def __init__(
        self,
        config: Config,
        *,
        folder: Path,
        place: Backend,
        needs_reference: bool,
        critic: CriticSpec | None,
        tasks: Sequence[Task],
        valid: ValidData,
        sampler: Sampler,
        checkpoints: Checkpoints,
        tracker: Tracker,
        total_steps: int,
        state: TrainState,
        stop: Preemption,
    ) -> None:
        self.config = config
        self.folder = folder
        self.place = place
        self.policy = place.policy
        self.rollouts = place.rollouts
        self.critic = critic
        self.tasks = tasks
        if state.sampler:
            sampler.restore(state.sampler)
        self.chooser = TaskChooser(
            tasks, sampler, tasks_per_step=config.train.tasks_per_step, rounds=config.train.resample_rounds
        )
        self.tracker = tracker
        self.total_steps = total_steps
        self.state = state
        self.stop = stop
        self.saver = Saver(
            checkpoints,
            self._stage,
            every=config.train.save_every,
            last=total_steps,
            saved=state.step,
            in_background=config.train.async_save,
        )
        self.ahead = AsyncRollouts(self._play, staleness=config.train.staleness, last=total_steps)
        self.scorer = build_scorer(config)
        self.validation = Validation(
            config.train, self.rollouts, self.scorer, valid, max_masked=config.rollout.max_infra_rate
        )
        self.estimator = build_advantage(config)
        self.needs_reference = needs_reference
        self._save_s = 0.0  # seconds that the last step spent on its checkpoint
        self._score: CheckpointScore | None = None  # of the weights after `state.step`, by train.keep_best
        self._played: dict[str, float] = {}  # metrics of rollouts that were collected before their step
        self.plan = RolloutPlan(
            group_size=config.rollout.group_size,
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
            top_k=config.rollout.top_k,
            branch=True,
            salt="train",
        )

    async def run(self) -> TrainState:
        """Play all steps that are left, or those until a stop is asked for. The last one is always saved."""
        try:
            if self.state.step == 0 and self.validation.is_due(0):
                self.tracker.log(0, await self.stop.drop(self._validate(0)))
            await self._validate_again()
            while self.state.step < self.total_steps:
                self.stop.check()
                await self._step(self.state.step + 1)
        except Dropped:
            logger.warning("stopped behind step %d of %d", self.state.step, self.total_steps)
            await self.saver.save(self.state.step)
        except TrainingDiverged as error:
            if not error.mid_step and self.critic is None:  # skipped updates left the weights as they were
                await self.saver.save(self.state.step)
            raise
        finally:
            await self.ahead.cancel()
        return self.state

    async def _step(self, step: int) -> None:
        started = time.monotonic()
        clock = _Clock()
        played = await self.stop.drop(self.ahead.take(step))
        groups = played.groups
        metrics = {**reward_metrics(played.all), **await self._rollout_metrics()}
        metrics["group/replaced"] = float(len(played.replaced))
        self._check(step, played)
        clock.lap("rollout")
        warn_of_silence(step, groups)
        greedy = await self.stop.drop(self._greedy_rewards(groups, step))
        without = [i for i, reward in enumerate(greedy or []) if reward is None]
        rows = rows_of(groups, without=without)
        metrics |= row_metrics(groups, without=without)
        metrics |= lag_metrics(rows, version=self.state.step, allowed=self.config.train.staleness)
        metrics |= await self._learn(step, played, rows, greedy, clock)
        try:
            metrics |= await self._use_weights(step, clock)
        except Dropped:
            logger.warning("step %d: no time left for its weight sync and validation; its metrics lack them", step)
        await self._finish(step, metrics, clock, started)

    async def _use_weights(self, step: int, clock: _Clock) -> dict[str, float]:
        """Give the new weights to the engine, and validate them if it is time."""
        await self.stop.finish(self.place.sync_weights(step))
        clock.lap("sync")
        if not self.validation.is_due(step):
            return {}
        metrics = await self.stop.finish(self._validate(step))
        clock.lap("valid")
        return metrics

    async def _validate_again(self) -> None:
        """What a stop left out, or what came before `train.keep_best` was set: otherwise the checkpoint that this run
        goes on from could not be the best.
        """
        step, checkpoints = self.state.step, self.saver.checkpoints
        if not (step and checkpoints.keep_best and self.validation.is_due(step)) or checkpoints.score(step) is not None:
            return
        metrics = await self.stop.drop(self._validate(step))
        self.tracker.log(step, metrics)
        if (score := self.validation.score(step, metrics)) is not None:
            checkpoints.add_score(step, score)

    async def _validate(self, step: int) -> dict[str, float]:
        """Alone, so that its counts and those of the steps can be told apart."""
        if self.ahead.playing:
            await self.ahead.settle()
            self._played = await self.rollouts.metrics()
        return await self.validation(step)

    async def _rollout_metrics(self) -> dict[str, float]:
        metrics, self._played = self._played or await self.rollouts.metrics(), {}
        return metrics

    async def _play(self, step: int) -> PlayedStep:
        return await self.chooser.play(
            step, lambda tasks: play(self.rollouts, self.scorer, tasks, step=step, plan=self.plan)
        )

    def _check(self, step: int, played: PlayedStep) -> None:
        """Stop if too much failed; the groups are on disk then, for whoever looks for the cause."""
        try:
            check_failures(played.all)
            check_infrastructure(played.all, self.config.rollout.max_infra_rate)
        except RametError:
            self._write(step, played, [], [])
            raise

    async def _learn(
        self,
        step: int,
        played: PlayedStep,
        rows: list[Row],
        greedy: Sequence[float | None] | None,
        clock: _Clock,
    ) -> dict[str, float]:
        """Old log-probabilities, advantages, the record on disk, the update. No rows: nothing is learned, and said."""
        if not rows:
            baseline = "" if greedy is None else " and a greedy one"
            logger.warning("step %d: no group has two valid rollouts%s; nothing to learn from", step, baseline)
            self._write(step, played, [], [])
            return {"train/updates": 0.0}
        old = await self._old_logprobs(rows)
        reference = await self.policy.reference_logprobs(rows) if self.needs_reference else None
        values = await self.policy.values(rows) if self.critic is not None else None
        clock.lap("logprobs")
        output = estimate(
            self.estimator,
            rows,
            old_logprobs=old,
            ref_logprobs=reference,
            values=values,
            greedy_rewards=None
            if greedy is None
            else [reward for row in rows if (reward := greedy[row.group]) is not None],
        )
        batch = TrainBatch.from_padded(
            rows,
            output.advantages,
            returns=output.returns,
            old_logprobs=old,
            ref_logprobs=reference,
            values=values,
        )
        self._write(step, played, rows, batch.advantages)
        clock.lap("record")
        self.stop.check()  # the last place where the weights are those of the step before
        metrics = await self._update_critic(batch, step)
        if self.critic is None or step > self.critic.options.warmup_steps:
            metrics |= await self.policy.update(batch, step)
        clock.lap("update")
        return {**output.metrics, **metrics}

    async def _update_critic(self, batch: TrainBatch, step: int) -> dict[str, float]:
        if batch.values is None:
            return {}
        if batch.returns is None:
            raise PluginError(
                f"advantage estimator {origin(self.estimator)} needs values but returned no returns; the critic is "
                "trained on them"
            )
        return await self.policy.update_critic(batch, step)

    async def _old_logprobs(self, rows: list[Row]) -> list[Floats] | None:
        """If the estimator reads them. Otherwise the update finds them itself, if it takes more than one step."""
        if Need.OLD_LOGPROBS not in self.estimator.needs:
            return None
        if self.config.train.old_logprobs is OldLogprobs.ENGINE:
            return [row.engine_logprobs for row in rows]
        return await self.policy.logprobs(rows)

    async def _greedy_rewards(self, groups: Sequence[ScoredGroup], step: int) -> list[float | None] | None:
        """One greedy rollout per group, for estimators that use it as the baseline (ReMax). None: masked."""
        if Need.GREEDY_ROLLOUT not in self.estimator.needs:
            return None
        tasks = [group.task for group in groups]
        played = await play(self.rollouts, self.scorer, tasks, step=step, plan=GREEDY)
        if not self.ahead.playing:  # otherwise engine and tools count for the step that plays meanwhile as well
            await self.rollouts.metrics()  # the next step's counts must not hold these
        return [group.rollouts[0].reward for group in played]

    def _write(self, step: int, played: PlayedStep, rows: Sequence[Row], advantages: Sequence[Floats]) -> None:
        """Every group that was played; `row.group` counts those that are learned from, which come first."""
        by_group: dict[int, dict[str, array[float]]] = {}
        for row, values in zip(rows, advantages, strict=True):
            by_group.setdefault(row.group, {})[row.rollout_id] = array("f", values.tobytes())
        write_records(
            self.folder / "rollouts" / f"step_{step:06d}.jsonl.gz",
            [GroupRecord(step=step, group=group, advantages=by_group.get(i, {})) for i, group in enumerate(played.all)],
        )

    async def _finish(self, step: int, metrics: dict[str, float], clock: _Clock, started: float) -> None:
        """Report, then save if it is time. The other way round a kill in between would lose the report for good: what
        was reported behind the last checkpoint is redone, and trackers are rewound first.
        """
        metrics |= clock.metrics()
        metrics["time/save_s"] = self._save_s  # of the step before
        metrics["time/step_s"] = time.monotonic() - started
        self.tracker.log(step, metrics)
        self.state.step = step
        self._score = self.validation.score(step, metrics)
        self.state.sampler = self.chooser.state_after(step)
        self.state.seconds += time.monotonic() - started
        saving = time.monotonic()
        await self.saver.save_if_due(step, self._score)
        self._save_s = time.monotonic() - saving

    async def _stage(self) -> Callable[[Path], None]:
        await self.policy.stage()
        state, score = replace(self.state), self._score

        def write(folder: Path) -> None:
            self.policy.write_staged(folder)
            state.save(folder)
            if score is not None:
                score.write(folder)

        return write


class _Clock:
    """Seconds per phase of a step."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        now = time.monotonic()
        self._laps[phase] = self._laps.get(phase, 0.0) + now - self._last
        self._last = now

    def metrics(self) -> dict[str, float]:
        return {f"time/{phase}_s": seconds for phase, seconds in self._laps.items()}
