"""The loop of one training run: rollouts → rewards → advantages → record → update → weight sync → checkpoint.

The order inside a step is what makes a run resume exactly: a step is a function of the state before it, so a step that
was cut anywhere is redone from its start and gives the same numbers (deterministic mode) or the same prompts, seeds and
draws (otherwise). Its groups are on disk before the update.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Sequence
from pathlib import Path

from ramet.cluster.local import LocalRollouts
from ramet.cluster.parts import build_advantage, build_scorer
from ramet.config.schema import Config, OldLogprobs
from ramet.data.sampler import Sampler
from ramet.errors import RametError
from ramet.policy.batch import Floats, Row, row_metrics, rows_of, unpadded
from ramet.policy.checkpoint import Checkpoints
from ramet.policy.errors import TrainingDiverged
from ramet.policy.worker import PolicyWorker
from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup
from ramet.rollout.worker import RolloutPlan
from ramet.tracking.metrics import Tracker
from ramet.train.algorithm import estimate
from ramet.train.groups import check_infrastructure, play
from ramet.train.saving import Saver
from ramet.train.state import TrainState
from ramet.train.step_metrics import reward_metrics, warn_of_silence
from ramet.train.stop import Dropped, StopRequest
from ramet.train.validation import validate
from ramet.types import Need, Task

logger = logging.getLogger(__name__)


class Loop:
    """One run. Everything it is given is built and checked; `run` plays the steps that are left."""

    def __init__(
        self,
        config: Config,
        *,
        folder: Path,
        rollouts: LocalRollouts,
        policy: PolicyWorker,
        tasks: Sequence[Task],
        valid: Sequence[Task],
        sampler: Sampler,
        checkpoints: Checkpoints,
        tracker: Tracker,
        total_steps: int,
        state: TrainState,
        stop: StopRequest,
    ) -> None:
        self.config = config
        self.folder = folder
        self.rollouts = rollouts
        self.policy = policy
        self.tasks = tasks
        self.valid = valid
        self.sampler = sampler
        self.tracker = tracker
        self.total_steps = total_steps
        self.state = state
        self.stop = stop
        self.saver = Saver(checkpoints, self._save, every=config.train.save_every, last=total_steps, saved=state.step)
        self.scorer = build_scorer(config)
        self.estimator = build_advantage(config)
        self._save_s = 0.0  # seconds that the last step spent on its checkpoint
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
            if self.state.step == 0 and self.config.train.eval_first and self.valid:
                self.tracker.log(0, await self.stop.drop(validate(self.rollouts, self.scorer, self.valid, step=0)))
            while self.state.step < self.total_steps:
                self.stop.check()
                await self._step(self.state.step + 1)
        except Dropped:
            logger.warning("stopped behind step %d of %d", self.state.step, self.total_steps)
            self.saver.save(self.state.step)
        except TrainingDiverged as error:
            if not error.mid_step:  # skipped updates left the weights as they were
                self.saver.save(self.state.step)
            raise
        return self.state

    async def _step(self, step: int) -> None:
        started = time.monotonic()
        clock = _Clock()
        tasks = [self.tasks[i] for i in self.sampler.batch(step - 1)]
        groups = await self.stop.drop(play(self.rollouts, self.scorer, tasks, step=step, plan=self.plan))
        metrics = {**reward_metrics(groups), **self.rollouts.metrics(), **row_metrics(groups)}
        self._check(step, groups)
        metrics |= self.scorer.metrics()
        clock.lap("rollout")
        warn_of_silence(step, groups)
        rows = rows_of(groups)
        greedy = await self.stop.drop(self._greedy_rewards(tasks, rows, step))
        metrics |= self._learn(step, groups, rows, greedy, clock)
        try:
            metrics |= await self._use_weights(step, clock)
        except Dropped:
            logger.warning("step %d: no time left for its weight sync and validation; its metrics lack them", step)
        self._finish(step, metrics, clock, started)

    async def _use_weights(self, step: int, clock: _Clock) -> dict[str, float]:
        """Give the new weights to the engine, and validate them if it is time."""
        await self.stop.finish(self.rollouts.engine.update_weights(self.policy.weights(), step))
        clock.lap("sync")
        if not (self.valid and self.config.train.eval_every and step % self.config.train.eval_every == 0):
            return {}
        metrics = await self.stop.finish(validate(self.rollouts, self.scorer, self.valid, step=step))
        clock.lap("valid")
        return metrics

    def _check(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        """Stop if too much failed; the groups are on disk then, for whoever looks for the cause."""
        try:
            self.scorer.check_failures()
            check_infrastructure(groups, self.config.rollout.max_infra_rate)
        except RametError:
            self._write(step, groups, [], [])
            raise

    def _learn(
        self,
        step: int,
        groups: Sequence[ScoredGroup],
        rows: list[Row],
        greedy: list[float] | None,
        clock: _Clock,
    ) -> dict[str, float]:
        """Old log-probabilities, advantages, the record on disk, the update. No rows: nothing is learned, and said."""
        if not rows:
            logger.warning("step %d: no group has two valid rollouts; nothing to learn from", step)
            self._write(step, groups, [], [])
            return {"train/updates": 0.0}
        old = self._old_logprobs(rows)
        reference = self.policy.reference_logprobs(rows) if self.policy.spec.needs_reference else None
        clock.lap("logprobs")
        output = estimate(self.estimator, rows, old_logprobs=old, ref_logprobs=reference, greedy_rewards=greedy)
        self._write(step, groups, rows, unpadded(rows, output.advantages))
        clock.lap("record")
        self.stop.check()  # the last place where the weights are those of the step before
        update = self.policy.update(
            rows,
            output.advantages,
            step=step,
            old_logprobs=old,
            ref_logprobs=reference,
            returns=output.returns,
        )
        clock.lap("update")
        return {**output.metrics, **update}

    def _old_logprobs(self, rows: list[Row]) -> list[Floats]:
        if self.config.train.old_logprobs is OldLogprobs.ENGINE:
            return [row.engine_logprobs for row in rows]
        return self.policy.logprobs(rows)

    async def _greedy_rewards(self, tasks: Sequence[Task], rows: Sequence[Row], step: int) -> list[float] | None:
        """One greedy rollout per task, for estimators that use it as the baseline (ReMax)."""
        if Need.GREEDY_ROLLOUT not in self.estimator.needs:
            return None
        plan = RolloutPlan(group_size=1, temperature=0.0, top_p=1.0, top_k=0, branch=False, salt="greedy")
        groups = await play(self.rollouts, self.scorer, tasks, step=step, plan=plan)
        self.rollouts.metrics()  # the next step's counts must not hold these
        self.scorer.metrics()
        rewards = [group.rollouts[0].reward for group in groups]
        return [float("nan") if (reward := rewards[row.group]) is None else reward for row in rows]

    def _write(
        self, step: int, groups: Sequence[ScoredGroup], rows: Sequence[Row], advantages: Sequence[Floats]
    ) -> None:
        by_group: dict[int, dict[str, array[float]]] = {}
        for row, values in zip(rows, advantages, strict=True):
            by_group.setdefault(row.group, {})[row.rollout_id] = array("f", values.tobytes())
        write_records(
            self.folder / "rollouts" / f"step_{step:06d}.jsonl.gz",
            [GroupRecord(step=step, group=group, advantages=by_group.get(i, {})) for i, group in enumerate(groups)],
        )

    def _finish(self, step: int, metrics: dict[str, float], clock: _Clock, started: float) -> None:
        """Report, then save if it is time. The other way round a kill in between would lose the report for good: what
        was reported behind the last checkpoint is redone, and trackers are rewound first.
        """
        metrics |= clock.metrics()
        metrics["time/save_s"] = self._save_s  # of the step before
        metrics["time/step_s"] = time.monotonic() - started
        self.tracker.log(step, metrics)
        self.state.step = step
        self.state.seconds += time.monotonic() - started
        saving = time.monotonic()
        self.saver.save_if_due(step)
        self._save_s = time.monotonic() - saving

    def _save(self, folder: Path) -> None:
        self.policy.save(folder)
        self.state.save(folder)


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
