"""How a step changes the weights: from scored groups to advantages, the record on disk, and the update.

The estimator gets the inputs that its `needs` name. Its output is checked before anything is written or trained on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from ramet.algorithms.kl_control import KL_HORIZON, KlController, kl_penalty
from ramet.cluster.interfaces import Ranks, Recorder
from ramet.config.schema import Config, KlEstimator, OldLogprobs
from ramet.errors import PluginError
from ramet.io import repeats
from ramet.plugins import origin
from ramet.plugins.output_checks import advantage_problem
from ramet.plugins.plugin_code import boundary, defined_at
from ramet.policy.batching.rows import Floats, Row, row_metrics, rows_of
from ramet.policy.batching.shared import groups_of
from ramet.policy.batching.threads import Threads
from ramet.policy.batching.train_batch import TrainBatch, padded
from ramet.policy.objective import unchanged
from ramet.policy.rank import PolicyRank
from ramet.policy.spec import CriticSpec
from ramet.rollout.scoring import ScoredGroup
from ramet.train.groups import StepClock, lag_metrics
from ramet.train.preemption import Preemption
from ramet.train.recording import check_folder, parts_path, record_step, step_records
from ramet.train.rescoring import Rescorer
from ramet.train.run import TrainState
from ramet.train.step_rollouts import PlayedStep
from ramet.types import AdvantageEstimator, AdvantageOutput, Need
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
        recorder: Recorder | None = None,
    ) -> None:
        """`folder` is the run's; `state` has the KL coefficient to continue with, where it follows a target. `recorder`
        None: the record is written in this process.
        """
        self._recorder = recorder
        self._config = config
        self._folder = folder
        self._ranks = ranks
        self._critic = critic
        self._estimator = estimator
        self._rescorer = Rescorer(config, estimator, ranks)
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
        rows = rows_of(played.groups, without=without, min_group=self.min_group)
        metrics = row_metrics(played.groups, without=without, min_group=self.min_group)
        metrics |= lag_metrics(rows, version=step - 1, allowed=self._config.train.staleness)
        if not rows:
            baseline = "" if greedy is None else " and a greedy one"
            what = "no group has two valid rollouts" if self.min_group > 1 else "no rollout is valid"
            repeats.warn(logger, what, f"step %d: {what}%s; nothing to learn from", step, baseline, by_step=True)
            await self._record(step, played, None, greedy)
            return metrics | {"train/updates": 0.0}
        batch, reported = await self._train_batch(rows, played.groups, greedy, clock)
        clock.lap("record")
        self._preemption.check()  # the last point with the weights of the step before
        recording = asyncio.create_task(self._record(step, played, batch, greedy))
        try:
            updated: dict[str, float] = {}
            threads = batch.by_thread()
            if self._critic is not None:
                updated |= await self._ranks.call(PolicyRank.update_critic, threads, step)
            if self._policy_learns(step):
                updated |= await self._ranks.call(PolicyRank.update, threads, step)
            clock.lap("update")
        except BaseException:
            await asyncio.gather(recording, return_exceptions=True)  # what the update raised comes first
            raise
        await recording  # before anything uses the new weights
        clock.lap("record")
        return {**metrics, **reported, **updated, **self._adapt_kl({**reported, **updated}, len(rows), step)}

    async def _record(
        self, step: int, played: PlayedStep, batch: TrainBatch | None, greedy: Sequence[float | None] | None
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
            reward_weights={name: reward.weight for name, reward in self._config.rewards.items()},
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


def estimate(
    estimator: AdvantageEstimator,
    step: TrainBatch,
    *,
    greedy_rewards: Sequence[float] | None = None,
    kl_in_reward: bool = False,
) -> tuple[TrainBatch, dict[str, float]]:
    """Return the step's rows with their advantages, and the estimator's metrics. It sees what its `needs` name of what
    the step has, at once or by group (`scope`).

    `kl_in_reward`: tokens lose `step.kl_coef` times their KL to the reference. A `discounted` estimator has that among
    its token rewards. For any other, the KL part is added to the estimator's output. Otherwise statistics of a group
    (such as the division by its standard deviation) would turn the noise of a small KL into advantages of full size.
    Raises `PluginError` if the estimator breaks the contract.
    """
    by_group = getattr(estimator, "scope", "batch") == "group"  # may be left out
    parts = groups_of(step.rows) if by_group else [list(range(len(step.rows)))]
    learned, metrics = [], defaultdict[str, list[tuple[float, int]]](list)
    for indices in parts:
        part = step.part(indices) if by_group else step
        greedy = None if greedy_rewards is None else [greedy_rewards[i] for i in indices]
        output = _estimate(estimator, part, greedy, kl_in_reward)
        learned.append(part.with_advantages(output.advantages, returns=output.returns, weights=output.weights))
        for name, value in output.metrics.items():
            metrics[name].append((float(value), len(indices)))
    batch = step.with_parts(parts, learned) if by_group else learned[0]
    return batch, {name: _mean_of_rows(values) for name, values in metrics.items()}


def _mean_of_rows(values: Sequence[tuple[float, int]]) -> float:
    """Return the mean of values of groups by their numbers of rows."""
    if len(values) == 1:
        return values[0][0]
    return sum(value * n for value, n in values) / sum(n for _, n in values)


def _estimate(
    estimator: AdvantageEstimator, step: TrainBatch, greedy_rewards: Sequence[float] | None, kl_in_reward: bool
) -> AdvantageOutput:
    """Return checked advantages `[N, T]` of all rows of `step`, which may be one group's."""
    name = f"advantage estimator {origin(estimator)}"
    batch = step.advantage_inputs(estimator.needs, greedy_rewards)
    penalty = None
    if kl_in_reward and step.old_logprobs is not None and step.ref_logprobs is not None:
        old, ref = (padded(logprobs, torch.float32, 0) for logprobs in (step.old_logprobs, step.ref_logprobs))
        penalty = kl_penalty(old, ref, batch.mask, coef=step.kl_coef, estimator=KlEstimator.K1)
    discounted = bool(getattr(estimator, "discounted", False))  # may be left out
    if penalty is not None and discounted:
        earned = 0 if batch.token_rewards is None else batch.token_rewards
        batch = replace(batch, token_rewards=earned + penalty.token_rewards)
    if Need.ENTROPY in estimator.needs and batch.entropies is None:
        raise PluginError(f"{name} needs entropies, and the engine reported none for this step")
    with torch.no_grad(), unchanged(batch, name):
        with boundary(name, "advantage"):
            output = estimator(batch)
    problem = advantage_problem(output, batch)
    if problem is not None:
        raise PluginError(f"{name}: {problem}{defined_at(estimator)}")
    if penalty is None:
        return output
    output = replace(output, metrics={**output.metrics, "train/kl_reward": penalty.kl})
    return output if discounted else replace(output, advantages=output.advantages + penalty.to_go(batch.mask))
