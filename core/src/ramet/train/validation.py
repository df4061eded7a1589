"""Validation during training: the tasks of `data.valid` through the same code path, sampled as `train.eval_…` says.

Tasks of data files are scored by the run's rewards; tasks of a benchmark by the benchmark, and by rewards that apply.
What a reward leaves out of training counts here, or a policy would look better the more of its rollouts are cut off.
All means are over tasks, as in `ramet eval`.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ramet.cluster.interfaces import Rollouts
from ramet.config.schema import TrainConfig
from ramet.evaluate.measure import judge
from ramet.evaluate.statistics import avg_at_k, pass_at_k
from ramet.policy.checkpoint.store import CheckpointScore, score_of
from ramet.rollout.plan import RolloutPlan
from ramet.rollout.scoring import ScoredGroup, ScoredRollout, Scorer
from ramet.tracking import repeats
from ramet.train.groups import play
from ramet.types import Benchmark, Group, Task

logger = logging.getLogger(__name__)
REWARD = "valid/reward"
MASKED = "valid/masked_share"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidData:
    """What is validated on."""

    tasks: Sequence[Task] = ()
    origins: Mapping[str, str] = field(default_factory=dict)  # id of a task -> name of its benchmark
    benchmarks: Mapping[str, Benchmark] = field(default_factory=dict)  # by name

    def metrics(self, scorer: Scorer, k: int) -> list[str]:
        """Every metric that a validation can report where higher is better."""
        rewarded = [task for task in self.tasks if scorer.applies_to(task)]
        sources = sorted({task.data_source for task in rewarded if task.data_source})
        names = [REWARD, *(f"{REWARD}/{source}" for source in sources)] if rewarded else []
        for name, benchmark in sorted(self.benchmarks.items()):
            for metric in benchmark.info.metrics:
                names.append(f"valid/{name}/{metric}")
                names += [f"valid/{name}/{metric}/pass@{k}"] if k > 1 else []
        return names


def plan_of(train: TrainConfig) -> RolloutPlan:
    """Without a deadline of the step: what it cut off would bias the metric that checkpoints are chosen by."""
    return RolloutPlan(
        group_size=train.eval_k,
        temperature=train.eval_temperature,
        top_p=train.eval_top_p,
        top_k=train.eval_top_k,
        branch=False,
        salt="valid",
        step_deadline=False,
    )


class Validation:
    """Plays and scores `data`; called with the step whose weights the engines have.

    Above a share of `max_masked` the rest would be a biased subset, and makes no checkpoint the best.
    """

    def __init__(
        self, train: TrainConfig, rollouts: Rollouts, scorer: Scorer, data: ValidData, *, max_masked: float
    ) -> None:
        self.train = train
        self.max_masked = max_masked
        self.rollouts = rollouts
        self.scorer = scorer
        self.data = data

    def is_due(self, step: int) -> bool:
        """Whether the weights after this step are validated; 0: those before the first."""
        every = self.train.eval_every
        return bool(self.data.tasks) and (self.train.eval_first if step == 0 else every > 0 and step % every == 0)

    def score(self, step: int, metrics: Mapping[str, float]) -> CheckpointScore | None:
        """By `train.keep_best`, from the metrics of this step; None if there is none."""
        metric = self.train.keep_best
        if metric is None or not self.is_due(step):
            return None
        masked = metrics.get(MASKED, 0.0)
        if masked > self.max_masked:
            repeats.warn(
                logger,
                "too much of the validation is masked",
                "step %d: valid/masked_share is %.3g (limit rollout.max_infra_rate=%g), so its checkpoint cannot be "
                "the best (train.keep_best): the rest would be a biased subset",
                step,
                masked,
                self.max_masked,
                by_step=True,
            )
            return None
        score = score_of(metrics, metric)
        if score is None:
            message = "step %d: no %s, so its checkpoint cannot be the best (train.keep_best)"
            repeats.warn(logger, f"the validation has no {metric}", message, step, metric, by_step=True)
        return score

    async def __call__(self, step: int) -> dict[str, float]:
        """`valid/…`: rewards overall and by data source, metrics of benchmarks, share with tool calls, share masked."""
        judged = _Judged(self.scorer, self.data)
        groups = await play(self.rollouts, judged, self.data.tasks, step=step, plan=plan_of(self.train))
        await self.rollouts.metrics()  # what validation played must not be in the next step's counts
        rollouts = [one for group in groups for one in group.rollouts]
        valid = [one for one in rollouts if not judged.is_missing(one)]
        metrics = {MASKED: 1 - len(valid) / len(rollouts)}
        if valid:
            metrics["valid/tool_use"] = statistics.fmean(bool(one.rollout.tool_calls) for one in valid)
        return {**metrics, **_rewards(groups), **judged.metrics(self.train.eval_k)}


class _Judged:
    """Scores the groups of one validation."""

    def __init__(self, scorer: Scorer, data: ValidData) -> None:
        self.scorer = scorer
        self.data = data
        self._scores: dict[str, list[Mapping[str, float | None]]] = {}  # of benchmarks, by task

    async def score(self, group: Group) -> ScoredGroup:
        name = self.data.origins.get(group.task.id)
        if name is not None:
            benchmark = self.data.benchmarks[name]
            self._scores[group.task.id] = [await judge(name, benchmark, rollout) for rollout in group.rollouts]
        if name is None or self.scorer.applies_to(group.task):
            return await self.scorer.score(group, leave_out=False)
        unscored = tuple(ScoredRollout(rollout=rollout, reward=None) for rollout in group.rollouts)
        return ScoredGroup(task=group.task, rollouts=unscored)

    def is_missing(self, one: ScoredRollout) -> bool:
        """Masked, or without the judgement that it needs."""
        task = one.rollout.task
        name = self.data.origins.get(task.id)
        if one.rollout.fault is not None or name is None:
            return one.reward is None
        return self._scores[task.id][int(one.rollout.id)].get(self.data.benchmarks[name].info.metrics[0]) is None

    def metrics(self, k: int) -> dict[str, float]:
        found: dict[str, float | None] = {}
        for name, benchmark in self.data.benchmarks.items():
            own = {task: rows for task, rows in self._scores.items() if self.data.origins[task] == name}
            for metric in benchmark.info.metrics:
                scores = {task: [row.get(metric) for row in rows] for task, rows in own.items()}
                found[f"valid/{name}/{metric}"] = avg_at_k(scores).mean
                if k > 1:
                    found[f"valid/{name}/{metric}/pass@{k}"] = pass_at_k(scores, k).estimate.mean
        return {name: value for name, value in found.items() if value is not None}


def _rewards(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    metrics = _mean(REWARD, groups)
    for source in sorted({group.task.data_source for group in groups if group.task.data_source}):
        own = (group for group in groups if group.task.data_source == source)
        metrics |= _mean(f"{REWARD}/{source}", own)
    return metrics


def _mean(name: str, groups: Iterable[ScoredGroup]) -> dict[str, float]:
    """Over the tasks' own means; nothing where nothing was judged."""
    rewards = ([one.reward for one in group.valid if one.reward is not None] for group in groups)
    means = [statistics.fmean(found) for found in rewards if found]
    return {name: statistics.fmean(means)} if means else {}
