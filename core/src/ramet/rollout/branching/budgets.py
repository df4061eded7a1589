"""The built-in step budgets: `contrast`, where different outcomes are expected, and its control `random`.

An estimator that compares the rollouts of a group learns nothing from equal rewards. So `contrast` grants rollouts to
the tasks whose next group will most probably be mixed, per sampled token. TRACE (arXiv 2606.11119) spreads a budget
over prompts and prefixes by a learned predictor of success; here it is a Beta posterior of each task's success.

A step has two waves, with half of its rollouts each. The second knows the outcomes of the first: tasks that proved to
be mixed get more, tasks that failed or succeeded throughout get less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import cast

from ramet.config.choices import BudgetKind
from ramet.types import BranchPolicy, Grant, GroupOutcome, StepBudget, StepView, TaskView

HALF_LIFE = 8  # steps after which an outcome counts half, since the policy has changed
PRIOR = 2.0  # rollouts that the success of all tasks together counts for a task
Choice = tuple[float, int | None]  # the worth of a part of a group, and the prefix that it begins with


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
    """Grant parts of groups one after the other, to the task that is worth most; parts of one task are one group.

    A further part of a task in the same step is worth a half, a third and so on: two groups of different tasks teach
    more than one task twice.
    """
    n = part_size(step.group_size)
    parts = min(step.budget_left, max(n, step.budget // 2)) // n
    before = [sum(len(group.rewards) for group in task.groups if group.step == step.step) // n for task in step.tasks]
    granted: Counter[int] = Counter()
    for _ in range(parts):
        room = [i for i in range(len(choices)) if (granted[i] + 1) * n <= step.group_size]
        if not room:
            break
        granted[max(room, key=lambda i: choices[i][0] / (1 + before[i] + granted[i]))] += 1
    return [Grant(task=i, n=granted[i] * n, prefix=choices[i][1]) for i in sorted(granted)]


class _Beliefs:
    """Beta posteriors of each task's success, and costs of a rollout, from the outcomes of a view.

    Success is a reward's place between the lowest and the highest of the view. While all are equal nothing is known.
    """

    def __init__(self, step: StepView, *, per_second: bool) -> None:
        self._step = step
        self._per_second = per_second
        outcomes = [group for task in step.tasks for group in task.groups]
        rewards = [reward for group in outcomes for reward in _valid(group)]
        self._low, self._high = min(rewards, default=0.0), max(rewards, default=0.0)
        good, bad = self._counts(outcomes)
        self._prior = PRIOR * (1 + good) / (2 + good + bad)
        self._cost = self._mean_cost(outcomes) or 1.0

    def choices(self, task: TaskView) -> Iterator[Choice]:
        n = part_size(self._step.group_size)
        good, bad = self._counts(group for group in task.groups if not group.from_prefix)
        good, bad = good + self._prior, bad + PRIOR - self._prior
        cost = self._mean_cost(task.groups) or self._cost
        yield mixed(good, bad, n) / cost, None
        if self._step.budget_left == self._step.budget or self._per_second:
            return  # a prefix says how many tokens it saves, not how many seconds
        for number, prefix in enumerate(task.prefixes):
            reward = self._success(prefix.reward) if prefix.reward is not None else 0.5
            saved = min(float(prefix.n_tokens), cost / 2)
            yield mixed(good + reward, bad + 1 - reward, n) / (cost - saved), number

    def _counts(self, groups: Iterator[GroupOutcome] | Sequence[GroupOutcome]) -> tuple[float, float]:
        good = bad = 0.0
        if self._low == self._high:
            return good, bad
        for group in groups:
            weight = 0.5 ** ((self._step.step - group.step) / HALF_LIFE)
            successes = [self._success(reward) for reward in _valid(group)]
            good += weight * sum(successes)
            bad += weight * (len(successes) - sum(successes))
        return good, bad

    def _success(self, reward: float) -> float:
        if self._low == self._high:
            return 0.5
        return min(1.0, max(0.0, (reward - self._low) / (self._high - self._low)))

    def _mean_cost(self, groups: Sequence[GroupOutcome]) -> float | None:
        costs = [(group.seconds if self._per_second else group.n_tokens) or 0.0 for group in groups]
        rollouts = sum(len(group.rewards) for group in groups)
        return sum(costs) / rollouts if rollouts and sum(costs) > 0 else None


def mixed(good: float, bad: float, n: int) -> float:
    """Return the probability that n rollouts do not all succeed or all fail, under Beta(good, bad) of success."""
    all_good = all_bad = 1.0
    for k in range(n):
        all_good *= (good + k) / (good + bad + k)
        all_bad *= (bad + k) / (good + bad + k)
    return 1 - all_good - all_bad


def _valid(group: GroupOutcome) -> Iterator[float]:
    return (reward for reward in group.rewards if reward is not None)
