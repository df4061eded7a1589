"""How a step changes the weights: from scored groups to advantages, the record on disk, and the update.

The estimator gets the inputs that its `needs` name. Its output is checked before anything is written or trained on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ramet.algorithms.kl_control import KL_HORIZON, KlController
from ramet.cluster.interfaces import LearnGroups, Ranks, Recorder
from ramet.config.schema import Config, KlEstimator, OldLogprobs
from ramet.errors import InfraError, PluginError
from ramet.io import repeats
from ramet.plugins import origin
from ramet.policy.advantages import GroupToLearn, LearnedGroup, estimate, is_by_group, mean_metrics
from ramet.policy.batching.rows import Floats, Row, TokenVersions, row_metrics, rows_of
from ramet.policy.batching.threads import Threads
from ramet.policy.batching.train_batch import TrainBatch
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import CriticSpec
from ramet.rollout.scoring import ScoredGroup
from ramet.train.groups import StepClock, lag_metrics
from ramet.train.preemption import Preemption
from ramet.train.recording import check_folder, parts_path, record_step, step_records
from ramet.train.rescoring import Rescorer
from ramet.train.run import TrainState
from ramet.train.step_rollouts import PlayedStep
from ramet.types import AdvantageEstimator, Need
from ramet.types.algorithm import MIN_GROUP

logger = logging.getLogger(__name__)


class Learner:
    """Trains policy and critic of a run on one step's groups after the other."""

    def __init__(
        self,
        config: Config,
        *,
        folder: Path,
        ranks: Ranks,
        critic: CriticSpec | None,
        estimator: AdvantageEstimator,
        needs_reference: bool,
        state: TrainState,
        preemption: Preemption,
        learn_groups: LearnGroups | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`folder` is the run's; `state` has the KL coefficient to continue with, where it follows a target.
        `learn_groups` None: rows are made in this process. `recorder` None: the record is written there.
        """
        self._learn_groups = learn_groups
        self._recorder = recorder
        self._config = config
        self._folder = folder
        self._ranks = ranks
        self._critic = critic
        self._estimator = estimator
        self._rescorer = Rescorer(config, estimator, ranks)
        self._reward_weights = {name: reward.weight for name, reward in config.rewards.items()}
        self._needs_reference = needs_reference
        self._preemption = preemption
        self._state = state
        train = config.train
        self._kl_in_reward = train.kl_coef > 0 and train.kl_estimator is KlEstimator.K1_REWARD
        self._kl = KlController(
            coef=train.kl_coef if state.kl_coef is None or train.kl_target is None else state.kl_coef,
            target=train.kl_target,
            horizon=max(KL_HORIZON, train.tasks_per_step * config.rollout.group_size),
        )

    @property
    def min_group(self) -> int:
        """Valid rollouts that a group needs to be learned from."""
        return int(getattr(self._estimator, "min_group", MIN_GROUP))

    async def learn(
        self, step: int, played: PlayedStep, greedy: Sequence[float | None] | None, clock: StepClock
    ) -> dict[str, float]:
        """Old log-probabilities, advantages, the update, and meanwhile the record on disk; returns metrics. The critic
        learns before the policy, which follows once the critic is warm.

        `greedy` has one baseline per group, None where it is masked: such a group is left out. Without any row a
        warning is logged, and nothing is learned. Raises `Dropped` if the run is to stop, before any weight changes.
        """
        without = [i for i, reward in enumerate(greedy or []) if reward is None]
        metrics = row_metrics(played.groups, without=without, min_group=self.min_group)
        n_rows, n_rollouts = int(metrics["train/rows"]), sum(len(group.rollouts) for group in played.groups)
        if not n_rows:
            baseline = "" if greedy is None else " and a greedy one"
            what = "no group has two valid rollouts" if self.min_group > 1 else "no rollout is valid"
            repeats.warn(logger, what, f"step %d: {what}%s; nothing to learn from", step, baseline, by_step=True)
            await self.record(step, played, None, greedy)
            return metrics | {"train/updates": 0.0}
        if n_rows < n_rollouts:
            message = "training on %d of %d rollouts: others are masked, single ones of a group or without a baseline"
            logger.info(message, n_rows, n_rollouts)
        batch: TrainBatch | None = None
        if self._learn_groups is None or not self.learns_elsewhere:
            rows = rows_of(played.groups, without=without, min_group=self.min_group)
            metrics |= self._lag_metrics(step, TokenVersions.of(rows), n_rows)
            batch, reported = await self._train_batch(rows, played.groups, greedy, clock)
        else:
            learned = await self._learn_groups(self._estimator, self._groups(played, greedy), self._kl.coef)
            metrics |= self._without_lost(metrics, learned)
            n_rows = int(metrics["train/rows"])
            metrics |= self._lag_metrics(step, TokenVersions.of_parts(group.versions for group in learned), n_rows)
            reported = await self._taken_batch(learned, clock)
        clock.lap("record")
        self._preemption.check()  # the last point with the weights of the step before
        recording = asyncio.create_task(self.record(step, played, batch, greedy))
        try:
            updated = await self._update(batch, step)
            clock.lap("update")
        except BaseException:
            await asyncio.gather(recording, return_exceptions=True)  # what the update raised comes first
            raise
        await recording  # before anything uses the new weights
        clock.lap("record")
        return {**metrics, **reported, **updated, **self._adapt_kl({**reported, **updated}, n_rows, step)}

    @property
    def learns_elsewhere(self) -> bool:
        """Whether the processes that have the groups make rows and advantages, which need nothing but single groups."""
        of_groups = {Need.ENTROPY, Need.GREEDY_ROLLOUT}
        by_group = is_by_group(self._estimator) and self._estimator.needs <= of_groups and not self._kl_in_reward
        return by_group and self._learn_groups is not None

    def _groups(self, played: PlayedStep, greedy: Sequence[float | None] | None) -> list[GroupToLearn]:
        """Return the groups that have rows."""
        rewards = [None] * len(played.groups) if greedy is None else greedy
        return [
            GroupToLearn(number=number, group=group, greedy=reward, reward_weights=self._reward_weights)
            for number, (group, reward) in enumerate(zip(played.groups, rewards, strict=True))
            if len(group.valid) >= self.min_group and (greedy is None or reward is not None)
        ]

    @staticmethod
    def _without_lost(metrics: Mapping[str, float], learned: Sequence[LearnedGroup]) -> dict[str, float]:
        """Return the counts of rows and masked rollouts where groups are lost with their node. Raises `InfraError` if
        all are.
        """
        n_lost = metrics["train/rows"] - sum(group.n_rows for group in learned)
        if n_lost == metrics["train/rows"]:
            raise InfraError("all groups of the step are lost with their nodes")
        return {
            "train/rows": metrics["train/rows"] - n_lost,
            "train/masked_rollouts": metrics["train/masked_rollouts"] + n_lost,
        }

    def _lag_metrics(self, step: int, versions: TokenVersions, n_rows: int) -> dict[str, float]:
        return lag_metrics(versions, n_rows, version=step - 1, allowed=self._config.train.staleness)

    async def _taken_batch(self, learned: Sequence[LearnedGroup], clock: StepClock) -> dict[str, float]:
        """Complete the batch that the ranks have taken; returns the estimator's metrics."""
        if self._needs_reference:
            await self._ranks.call(PolicyRank.add_reference_logprobs)
        clock.lap("logprobs")
        return mean_metrics((group.metrics, group.n_rows) for group in learned)

    async def _update(self, batch: TrainBatch | None, step: int) -> dict[str, float]:
        """Let the ranks learn; returns their metrics. `batch` None: from the batch that they have taken."""
        if batch is None:
            return await self._ranks.call(PolicyRank.update_taken, step)
        threads, updated = batch.by_thread(), dict[str, float]()
        if self._critic is not None:
            updated |= await self._ranks.call(PolicyRank.update_critic, threads, step)
        if self._policy_learns(step):
            updated |= await self._ranks.call(PolicyRank.update, threads, step)
        return updated

    async def record(
        self,
        step: int,
        played: PlayedStep,
        batch: TrainBatch | None = None,
        greedy: Sequence[float | None] | None = None,
    ) -> None:
        """Write the step's record, not on the loop, where rollouts of the next step may be running."""
        if self._recorder is None:
            await asyncio.to_thread(record_step, self._folder, step, played, batch, greedy=greedy)
            return
        records = await asyncio.to_thread(step_records, step, played, batch, greedy=greedy)
        check_folder(self._folder)
        await self._recorder(parts_path(self._folder, step), records)

    def _adapt_kl(self, metrics: Mapping[str, float], n_rollouts: int, step: int) -> dict[str, float]:
        """Let the KL coefficient of the next step follow its target. The metric is this step's."""
        if self._kl.target is None:
            return {}
        used = self._kl.coef
        name = "train/kl_reward" if self._config.train.kl_estimator is KlEstimator.K1_REWARD else "train/kl_reference"
        if name in metrics and self._policy_learns(step):  # until then the KL is 0, and says nothing
            self._kl.update(metrics[name], n_rollouts)
        self._state.kl_coef = self._kl.coef
        return {"train/kl_coef": used}

    async def _train_batch(
        self,
        rows: list[Row],
        groups: Sequence[ScoredGroup],
        greedy: Sequence[float | None] | None,
        clock: StepClock,
    ) -> tuple[TrainBatch, dict[str, float]]:
        """The rows with their advantages, and the estimator's metrics."""
        threads = Threads.of(rows)
        old = await self._old_logprobs(rows, threads)
        reference = values = None
        if self._needs_reference:
            reference = threads.join(await self._ranks.call(PolicyRank.reference_logprobs, threads.rows))
        if self._critic is not None:
            values = threads.join(await self._ranks.call(PolicyRank.values, threads.rows))
        batch = TrainBatch(
            rows=rows,
            old_logprobs=old,
            ref_logprobs=reference,
            values=values,
            kl_coef=self._kl.coef,
            rescored_logprobs=await self._rescorer.rescored(rows, groups),
            probe_logprobs=await self._rescorer.probed(rows, groups),
            reward_weights=self._reward_weights,
        )
        clock.lap("logprobs")
        baselines = None if greedy is None else [reward for row in rows if (reward := greedy[row.group]) is not None]
        learned, metrics = estimate(self._estimator, batch, greedy_rewards=baselines, kl_in_reward=self._kl_in_reward)
        if values is not None and learned.returns is None:
            raise PluginError(
                f"advantage estimator {origin(self._estimator)} needs values but returned no returns; the critic is "
                "trained on them"
            )
        return replace(learned, rescored_logprobs=None, probe_logprobs=None), metrics  # no rank reads them

    def _policy_learns(self, step: int) -> bool:
        """Whether the critic is warm, if there is one."""
        return self._critic is None or step > self._critic.options.warmup_steps

    async def _old_logprobs(self, rows: list[Row], threads: Threads) -> list[Floats] | None:
        """Compute them if the estimator or a KL in the reward reads them.

        Otherwise the update finds them itself, if it takes more than one step.
        """
        if Need.OLD_LOGPROBS not in self._estimator.needs and not self._kl_in_reward:
            return None
        if self._config.train.old_logprobs is OldLogprobs.ENGINE:
            return [row.engine_logprobs for row in rows]
        return threads.join(await self._ranks.call(PolicyRank.logprobs, threads.rows))
