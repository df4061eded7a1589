"""The built-in step budgets: `contrast`, where different outcomes are expected, and its control `random`.

An estimator that compares the rollouts of a group learns nothing from equal rewards. So `contrast` grants rollouts to
the tasks whose rewards vary most, per sampled token. TRACE (arXiv 2606.11119) spreads a budget over prompts and
prefixes by a learned predictor of success; here it is the variance that each task's groups had.

A step has two waves, with half of its rollouts each. A task without recent outcomes is probed with half a group, one
that has some gets a complete group. The second wave knows the outcomes of the first, so tasks whose probes differed are
granted complete groups in the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from random import Random
from statistics import fmean
from typing import cast

from ramet.config.choices import BudgetKind
from ramet.types import BranchPolicy, Grant, GroupOutcome, StepBudget, StepView, TaskView

HALF_LIFE = 8  # steps after which an outcome counts half, since the policy has changed
PRIOR = 2.0  # degrees of freedom that the variance of all tasks together counts for a task
AGAIN = 0.5  # worth of a task that has had a complete group in the step: other tasks teach more
Choice = tuple[float, int | None]  # the worth of a rollout, and the prefix that it begins with


def step_budget(kind: BudgetKind, policy: BranchPolicy) -> StepBudget | None:
    """Return the budget of a run; None: each task has a group of the same size."""
    match kind:
        case BudgetKind.AUTO:
            return cast(StepBudget, policy) if hasattr(policy, "allocate") else None  # may be left out
        case BudgetKind.UNIFORM:
            return None
        case BudgetKind.RANDOM:
            return RandomBudget()
        case _:
            return ContrastBudget(per_second=kind is BudgetKind.CONTRAST_PER_SECOND)


def part_size(group_size: int) -> int:
    """Return the rollouts of the smallest group that the built-in budgets grant: half of a group."""
    return -(-group_size // 2)


class ContrastBudget:
    """Stored prefixes are considered after the first wave, which always begins as the branch policy decides."""

    def __init__(self, *, per_second: bool = False) -> None:
        self._per_second = per_second

    def allocate(self, step: StepView, rng: Random) -> Sequence[Grant]:
        beliefs = _Beliefs(step, per_second=self._per_second)
        return _wave(step, [max(beliefs.choices(task), key=lambda choice: choice[0]) for task in step.tasks])


class RandomBudget:
    """The same number of rollouts in the same waves; the worth of each task is drawn."""

    def allocate(self, step: StepView, rng: Random) -> Sequence[Grant]:
        return _wave(step, [(rng.random(), None) for _ in step.tasks])


def _wave(step: StepView, choices: Sequence[Choice]) -> list[Grant]:
    """Grant at most one group to each task, beginning with the task that is worth most."""
    part = part_size(step.group_size)
    left = min(step.budget_left, max(part, step.budget // 2))
    worth = [choice[0] * _again(step, task) for choice, task in zip(choices, step.tasks, strict=True)]
    grants = []
    for i in sorted(range(len(worth)), key=lambda i: -worth[i]):
        n = min(left, step.group_size if _freedom(step, step.tasks[i].groups) >= 1 else part)
        if n >= part:
            grants.append(Grant(task=i, n=n, prefix=choices[i][1]))
            left -= n
    return grants


def _again(step: StepView, task: TaskView) -> float:
    had = sum(len(group.rewards) for group in task.groups if group.step == step.step)
    return AGAIN if had >= step.group_size else 1.0


class _Beliefs:
    """Expected variances of each task's rewards, and costs of a rollout, from the outcomes of a view.

    Variances are those within groups, so a task that is solved now and failed before has none.
    """

    def __init__(self, step: StepView, *, per_second: bool) -> None:
        self._step = step
        self._per_second = per_second
        outcomes = [group for task in step.tasks for group in task.groups]
        squares = _squares(step, outcomes)
        self._prior = squares / _freedom(step, outcomes) if squares else 1.0  # then tasks without outcomes come first
        self._cost = self._mean_cost(outcomes) or 1.0

    def choices(self, task: TaskView) -> Iterator[Choice]:
        groups = [group for group in task.groups if not group.from_prefix]
        squares = PRIOR * self._prior + _squares(self._step, groups)
        freedom = PRIOR + _freedom(self._step, groups)
        cost = self._mean_cost(task.groups) or self._cost
        yield squares / freedom / cost, None
        if self._step.budget_left == self._step.budget or self._per_second:
            return  # a prefix says how many tokens it saves, not how many seconds
        rewards = [reward for group in groups for reward in _valid(group)]
        for number, prefix in enumerate(task.prefixes):
            far = squares / freedom  # the square that the prefix's reward adds
            if prefix.reward is not None and rewards:
                far = (prefix.reward - fmean(rewards)) ** 2
            saved = min(float(prefix.n_tokens), cost / 2)
            yield (squares + far) / (freedom + 1) / (cost - saved), number

    def _mean_cost(self, groups: Sequence[GroupOutcome]) -> float | None:
        costs = [(group.seconds if self._per_second else group.n_tokens) or 0.0 for group in groups]
        rollouts = sum(len(group.rewards) for group in groups)
        return sum(costs) / rollouts if rollouts and sum(costs) > 0 else None


def _squares(step: StepView, groups: Iterable[GroupOutcome]) -> float:
    """Sum the squared distances of rewards from their group's mean; old ones weigh less."""
    total = 0.0
    for group in groups:
        if rewards := _valid(group):
            mean = fmean(rewards)
            total += _weight(step, group) * sum((reward - mean) ** 2 for reward in rewards)
    return total


def _freedom(step: StepView, groups: Iterable[GroupOutcome]) -> float:
    """Sum the degrees of freedom of `_squares`."""
    return sum(_weight(step, group) * max(0, len(_valid(group)) - 1) for group in groups)


def _weight(step: StepView, group: GroupOutcome) -> float:
    return float(0.5 ** ((step.step - group.step) / HALF_LIFE))


def _valid(group: GroupOutcome) -> list[float]:
    return [reward for reward in group.rewards if reward is not None]
