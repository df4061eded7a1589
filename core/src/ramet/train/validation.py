"""Validation during training: `data.valid` with the weights of a step.

Tasks of a benchmark are measured as `ramet eval` measures them, by the same functions: tools, limits, prompts, sampling
and seeds are an evaluation's, so the same weights get the same scores. Tasks of data files are scored by the run's
rewards, greedily unless `train.eval_…` says otherwise. Rewards score a benchmark's tasks too, where they apply.
Rollouts that a reward leaves out of training count here, or a policy would look better the more of them are cut off.
All means are over tasks. All rollouts are recorded.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ramet.cluster.interfaces import Rollouts
from ramet.config.schema import Config, TrainConfig
from ramet.evaluate.measure import MeasuredTask, measure_tasks
from ramet.evaluate.results import measured
from ramet.evaluate.tasks import TaskResult
from ramet.event_loop import first_error
from ramet.io import repeats
from ramet.policy.checkpoint.store import CheckpointScore, score_of
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.record import GroupRecord
from ramet.rollout.scoring import ScoredGroup, Scorer
from ramet.train.groups import masked_limit, play
from ramet.train.recording import record_validation
from ramet.train.valid_data import REWARD, ValidData
from ramet.types import Group, Rollout

logger = logging.getLogger(__name__)
MASKED = "valid/masked_share"


def plan_of(train: TrainConfig) -> RolloutPlan:
    """Return the plan for tasks of files, without a deadline of the step.

    Rollouts that it cut off would bias the metric that checkpoints are chosen by.
    """
    return RolloutPlan(
        group_size=train.eval_k,
        temperature=train.eval_sampling.get("temperature", 0.0),
        top_p=train.eval_sampling.get("top_p", 1.0),
        top_k=int(train.eval_sampling.get("top_k", 0)),
        min_p=train.eval_sampling.get("min_p", 0.0),
        repetition_penalty=train.eval_sampling.get("repetition_penalty", 1.0),
        branch=False,
        salt="valid",
        step_deadline=False,
        counted=False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedTask:
    """One task of a validation: judged and not judged rollouts."""

    record: GroupRecord
    rewarded: ScoredGroup | None  # None: no reward applies
    result: TaskResult | None = None  # None: a task of a file
    missing: frozenset[str] = frozenset()  # rollouts that are masked, or lack the judgement that they need

    @property
    def judged(self) -> list[Rollout]:
        rollouts = (scored.rollout for scored in self.record.group.rollouts)
        return [rollout for rollout in rollouts if rollout.id not in self.missing]


class Validation:
    """Runs and scores `data`; called with the step whose weights the engines have.

    Above a share of `rollout.max_masked_share` that is masked the rest would be a biased subset, and makes no
    checkpoint the best.
    """

    def __init__(self, config: Config, rollouts: Rollouts, scorer: Scorer, data: ValidData, *, folder: Path) -> None:
        self.train = config.train
        self.max_masked = masked_limit(config.rollout)
        self.rollouts = rollouts
        self.scorer = scorer
        self.data = data
        self.folder = folder  # of the run

    def is_due(self, step: int) -> bool:
        """Whether the weights after this step are validated; 0: those before the first."""
        every = self.train.eval_every
        return bool(self.data.tasks) and (self.train.eval_first if step == 0 else every > 0 and step % every == 0)

    def score(self, step: int, metrics: Mapping[str, float]) -> CheckpointScore | None:
        """Return the score by `train.keep_best` from the metrics of this step; None without one."""
        metric = self.train.keep_best
        if metric is None or not self.is_due(step):
            return None
        masked = metrics.get(MASKED, 0.0)
        if masked > self.max_masked:
            repeats.warn(
                logger,
                "too much of the validation is masked",
                "step %d: valid/masked_share is %.3g (limit rollout.max_masked_share=%g), so its checkpoint cannot be "
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
        async with first_error(), self.rollouts.uncounted(), asyncio.TaskGroup() as work:
            parts = [
                work.create_task(self._files(step)),
                *(work.create_task(self._benchmark(name)) for name in self.data.benchmarks),
            ]
        tasks = [task for part in parts for task in part.result()]
        record_validation(self.folder, step, [replace(task.record, step=step) for task in tasks])
        return self._metrics(tasks)

    async def _files(self, step: int) -> list[ValidatedTask]:
        tasks = self.data.of(None)
        if not tasks:
            return []
        request = RolloutRequest(tasks=tasks, step=step, plan=plan_of(self.train))
        groups = await play(self.rollouts, _CountingAll(self.scorer), request)
        return [
            ValidatedTask(
                record=GroupRecord(step=step, group=group),
                rewarded=group,
                missing=frozenset(scored.rollout.id for scored in group.rollouts if scored.reward is None),
            )
            for group in groups
        ]

    async def _benchmark(self, name: str) -> list[ValidatedTask]:
        """Validate a benchmark; results are in the order of the tasks."""
        k, validated = self.train.eval_k, dict[str, ValidatedTask]()
        tasks = self.data.of(name)

        async def keep(task: MeasuredTask) -> None:
            validated[task.group.task.id] = await self._rewarded(name, task)

        await measure_tasks(
            self.rollouts,
            name,
            self.data.benchmarks[name],
            {tuple(range(k)): tasks},
            plan=replace(self.data.rules[name].plan(k), counted=False),
            keep=keep,
        )
        return [validated[task.id] for task in tasks]

    async def _rewarded(self, name: str, task: MeasuredTask) -> ValidatedTask:
        """Score the task with the run's rewards, where they apply; the record has the main metric as reward."""
        main = self.data.benchmarks[name].info.metrics[0]
        missing = {rollout.id for rollout in task.result.rollouts if rollout.why_missing(main) is not None}
        if not self.scorer.applies_to(task.group.task):
            return ValidatedTask(record=task.record, rewarded=None, result=task.result, missing=frozenset(missing))
        rewarded = await self.scorer.score(task.group, leave_out=False)
        missing |= {scored.rollout.id for scored in rewarded.rollouts if scored.reward is None}
        both = tuple(
            replace(recorded, parts={**other.parts, **recorded.parts})
            for recorded, other in zip(task.record.group.rollouts, rewarded.rollouts, strict=True)
        )
        record = replace(task.record, group=replace(task.record.group, rollouts=both))
        return ValidatedTask(record=record, rewarded=rewarded, result=task.result, missing=frozenset(missing))

    def _metrics(self, tasks: Sequence[ValidatedTask]) -> dict[str, float]:
        judged = [rollout for task in tasks for rollout in task.judged]
        metrics = {MASKED: 1 - len(judged) / sum(len(task.record.group.rollouts) for task in tasks)}
        if judged:
            metrics["valid/tool_use"] = statistics.fmean(bool(rollout.tool_calls) for rollout in judged)
        metrics |= _rewards([task.rewarded for task in tasks if task.rewarded is not None])
        for name, benchmark in self.data.benchmarks.items():
            results = [task.result for task in tasks if task.result is not None and task.result.benchmark == name]
            k = self.train.eval_k
            means = measured(name, results, benchmark.info.metrics, k=k, pass_at=(k,)).means()
            metrics |= {f"valid/{name}/{metric}": mean for metric, mean in means.items() if mean is not None}
        return metrics


class _CountingAll:
    """A scorer that also scores rollouts that a reward leaves out of training."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    async def score(self, group: Group) -> ScoredGroup:
        return await self._scorer.score(group, leave_out=False)


def _rewards(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    metrics = _mean(REWARD, groups)
    for source in sorted({group.task.data_source for group in groups if group.task.data_source}):
        of_source = (group for group in groups if group.task.data_source == source)
        metrics |= _mean(f"{REWARD}/{source}", of_source)
    return metrics


def _mean(name: str, groups: Iterable[ScoredGroup]) -> dict[str, float]:
    """Mean over the tasks' own means; empty where nothing was judged."""
    rewards = ([scored.reward for scored in group.valid if scored.reward is not None] for group in groups)
    means = [statistics.fmean(values) for values in rewards if values]
    return {name: statistics.fmean(means)} if means else {}
