"""Advantages: what an estimator is given of a step's rows, and the checks of what it returns.

An estimator that is called by group can be called by the process that ran the groups (`learn_group`).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ramet.algorithms.kl_control import kl_penalty
from ramet.config.schema import KlEstimator
from ramet.errors import PluginError
from ramet.plugins import origin
from ramet.plugins.output_checks import advantage_problem
from ramet.plugins.plugin_code import boundary, defined_at
from ramet.policy.batching.rows import TokenVersions, rows_of_group
from ramet.policy.batching.shared import groups_of
from ramet.policy.batching.train_batch import TrainBatch, padded
from ramet.policy.objective import unchanged
from ramet.rollout.scoring import ScoredGroup
from ramet.types import AdvantageEstimator, AdvantageOutput, Need


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupToLearn:
    """A group that has rows."""

    number: int  # in its step
    group: ScoredGroup
    greedy: float | None  # the reward of its greedy rollout, for estimators that need one
    reward_weights: Mapping[str, float] = field(default_factory=dict)  # of each configured reward, for estimators


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedGroup:
    """The report of a group whose rows have their advantages."""

    n_rows: int
    versions: TokenVersions
    metrics: Mapping[str, float]  # of the estimator

    @classmethod
    def none(cls) -> LearnedGroup:
        """Return the report of a group that is lost, and has no rows."""
        return cls(n_rows=0, versions=TokenVersions.of_parts([]), metrics={})


def is_by_group(estimator: AdvantageEstimator) -> bool:
    """Whether it is called once for each group, and not once for a step."""
    return getattr(estimator, "scope", "batch") == "group"  # may be left out


def learn_group(estimator: AdvantageEstimator, group: GroupToLearn) -> tuple[TrainBatch, LearnedGroup]:
    """Return a group's rows with their advantages, as `estimate` gives them for an estimator that is called by group
    and needs nothing of the policy. Raises as `rows_of` and `estimate`.
    """
    rows = rows_of_group(group.group, group.number)
    greedy = None if group.greedy is None else [group.greedy] * len(rows)
    step = TrainBatch(rows=rows, reward_weights=group.reward_weights)
    batch, metrics = estimate(estimator, step, greedy_rewards=greedy)
    return batch, LearnedGroup(n_rows=len(rows), versions=TokenVersions.of(rows), metrics=metrics)


def recorded_advantages(batch: TrainBatch) -> dict[str, array[float]]:
    """Return the advantages of a group's rows by rollout, as a record has them."""
    pairs = zip(batch.rows, batch.advantages, strict=True)
    return {row.rollout_id: array("f", values.tobytes()) for row, values in pairs}


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
    by_group = is_by_group(estimator)
    parts = groups_of(step.rows) if by_group else [list(range(len(step.rows)))]
    learned, metrics = [], []
    for indices in parts:
        part = step.part(indices) if by_group else step
        greedy = None if greedy_rewards is None else [greedy_rewards[i] for i in indices]
        output = _estimate(estimator, part, greedy, kl_in_reward)
        learned.append(part.with_advantages(output.advantages, returns=output.returns, weights=output.weights))
        metrics.append((output.metrics, len(indices)))
    batch = step.with_parts(parts, learned) if by_group else learned[0]
    return batch, mean_metrics(metrics)


def mean_metrics(parts: Iterable[tuple[Mapping[str, float], int]]) -> dict[str, float]:
    """Return the means of the metrics of parts of a step, by their numbers of rows, which come with them."""
    by_name = defaultdict[str, list[tuple[float, int]]](list)
    for metrics, n_rows in parts:
        for name, value in metrics.items():
            by_name[name].append((float(value), n_rows))
    return {name: _mean_of_rows(values) for name, values in by_name.items()}


def _mean_of_rows(values: Sequence[tuple[float, int]]) -> float:
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
