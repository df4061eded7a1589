"""A step's groups as a step budget grants them (`train.budget`), wave after wave.

The driver draws the step's tasks and asks the budget. What it grants runs at once, as complete groups. When all of them
are complete, the budget is asked again, with their outcomes, until the step's rollouts are used up or it grants
nothing. Groups come in the order of the grants, so the next answer does not depend on which ended first.

The outcomes of each task's newest groups are kept for later steps, and in the checkpoint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from random import Random
from typing import Any

from ramet.config.schema import Config
from ramet.data.sampler import Sampler
from ramet.rollout.branching.grants import ask_budget
from ramet.rollout.keys import stable_seed
from ramet.rollout.plan import GrantedGroup
from ramet.rollout.scoring import ScoredGroup
from ramet.train.step_rollouts import DataPosition, PlayedStep, StepwiseRollouts
from ramet.types import Grant, GroupOutcome, PrefixView, StepBudget, StepView, Task, TaskView

KEPT = 8  # outcomes of a task from earlier steps
Outcomes = Mapping[str, tuple[GroupOutcome, ...]]  # by task, oldest first
PlayGranted = Callable[[list[Task], int, Sequence[GrantedGroup]], Coroutine[Any, Any, list[ScoredGroup]]]


class BudgetedRollouts(StepwiseRollouts):
    """`StepRollouts` that run a step when it is taken, as a step budget says."""

    def __init__(
        self,
        play: PlayGranted,
        budget: StepBudget,
        tasks: Sequence[Task],
        sampler: Sampler,
        *,
        config: Config,
        prefixes: Callable[[Task], tuple[PrefixView, ...]],
        outcomes: Outcomes,
    ) -> None:
        """`prefixes`: those that rollouts of a task may begin with now. `outcomes`: of earlier steps."""
        train = config.train
        self._play_granted = play
        self._budget = budget
        self._tasks = tasks
        self._sampler = sampler
        self._n_tasks = train.tasks_drawn
        self._n_rollouts = train.tasks_per_step * config.rollout.group_size
        self._config = config
        self._prefixes = prefixes
        self._outcomes = dict(outcomes)
        self._positions: dict[int, DataPosition] = {}

    async def take(self, step: int) -> PlayedStep:
        tasks = [self._tasks[i] for i in self._sampler.draw(self._n_tasks)]
        found: dict[str, tuple[GroupOutcome, ...]] = {task.id: () for task in tasks}
        groups: list[ScoredGroup] = []
        grants: list[Grant] = []
        waves = 0
        while wave := self._ask(step, waves, tasks, found, grants):
            played = await self._play_granted([tasks[grant.task] for grant in wave], step, _granted(grants, wave))
            for grant, group in zip(wave, played, strict=True):
                found[group.task.id] += (self._outcome(step, grant, group),)
            groups, grants, waves = [*groups, *played], [*grants, *wave], waves + 1
        kept = {task: (*self._outcomes.get(task, ()), *newest)[-KEPT:] for task, newest in found.items()}
        self._outcomes |= {task: outcomes for task, outcomes in kept.items() if outcomes}
        self._positions[step] = DataPosition(sampler=self._sampler.state(), outcomes=dict(self._outcomes))
        metrics = budget_metrics(grants, waves=waves, n_tasks=len(tasks), n_rollouts=self._n_rollouts)
        return PlayedStep(groups=groups, replaced=[], metrics=metrics)

    def _ask(
        self, step: int, wave: int, tasks: Sequence[Task], found: Outcomes, grants: Sequence[Grant]
    ) -> list[Grant]:
        """The next grants; none once nothing is left."""
        config, left = self._config, self._n_rollouts - sum(grant.n for grant in grants)
        if not left:
            return []
        view = StepView(
            step=step,
            tasks=tuple(
                TaskView(
                    task=task,
                    groups=(*self._outcomes.get(task.id, ()), *found[task.id]),
                    prefixes=self._prefixes(task),
                )
                for task in tasks
            ),
            group_size=config.rollout.group_size,
            max_group_size=config.rollout.max_concurrent,
            budget=self._n_rollouts,
            budget_left=left,
        )
        return ask_budget(self._budget, view, Random(stable_seed("budget", config.run.seed, step, wave)))

    def _outcome(self, step: int, grant: Grant, group: ScoredGroup) -> GroupOutcome:
        rollouts = [scored.rollout for scored in group.rollouts]
        sampled = {id(s): len(s) for rollout in rollouts for s in rollout.segments if s.is_sampled}
        seconds = None if self._config.run.deterministic else sum(r.stats.get("seconds", 0.0) for r in rollouts)
        return GroupOutcome(
            step=step,
            rewards=tuple(scored.score for scored in group.rollouts),
            n_tokens=sum(sampled.values()),
            seconds=seconds,
            from_prefix=grant.prefix is not None,
        )


def _granted(before: Sequence[Grant], wave: Sequence[Grant]) -> list[GrantedGroup]:
    """Number the roots of a task through all of its groups in the step, so that no two rollouts have the same key."""
    started = Counter[int]()
    granted = []
    for number, grant in enumerate([*before, *wave]):
        if number >= len(before):
            granted.append(GrantedGroup(n=grant.n, first_root=started[grant.task], prefix=grant.prefix))
        started[grant.task] += grant.n
    return granted


def budget_metrics(grants: Sequence[Grant], *, waves: int, n_tasks: int, n_rollouts: int) -> dict[str, float]:
    """How a step's rollouts were spread; of `n_tasks` that were drawn, and `n_rollouts` that it may have."""
    by_task = Counter[int]()
    for grant in grants:
        by_task[grant.task] += grant.n
    return {
        "budget/waves": float(waves),
        "budget/groups": float(len(grants)),
        "budget/tasks_drawn": float(n_tasks),
        "budget/tasks": float(len(by_task)),
        "budget/rollouts_of_one_task_max": float(max(by_task.values(), default=0)),
        "budget/from_prefix": float(sum(grant.n for grant in grants if grant.prefix is not None)),
        "budget/unused": float(n_rollouts - by_task.total()),
    }
