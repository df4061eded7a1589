"""Check of step budgets, the optional second method of branch policies: simulated steps, each answer asked for again.

The checks of the answers are the training loop's.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from ramet.errors import PluginError
from ramet.rollout.branching.grants import ask_budget
from ramet.testing.checked import checked, progress
from ramet.testing.expect import expect
from ramet.types import Grant, GroupOutcome, PrefixView, StepBudget, StepView, Task, TaskView, user_prompt

STEPS, TASKS, GROUP_SIZE = 3, 5, 4
BUDGETS = (TASKS * GROUP_SIZE, GROUP_SIZE)
PREFIXES = (PrefixView(n_tokens=12, turns=1, reward=0.0), PrefixView(n_tokens=30, turns=2, reward=1.0))


@checked("allocate")
def check_step_budget(budget: StepBudget) -> None:
    """Raise `AssertionError` unless the budget keeps the contract.

    Grants a group when a step begins, never more rollouts than are left, and only tasks and prefixes that there are.
    Answers the same for the same view and random state, in any order.
    """
    expect(not inspect.iscoroutinefunction(budget.allocate), "allocate is async: declare it with `def`")
    for n_rollouts in BUDGETS:
        asked = list(_steps(budget, n_rollouts))
        for view, state, grants in reversed(asked):
            rng = Random()
            rng.setstate(state)
            again = _ask(budget, view, rng)
            expect(
                again == grants,
                f"the same view of step {view.step}, with {view.budget_left} rollouts left, and the same random state "
                f"gave {grants} and then {again}: keep nothing between calls and draw only from the rng that allocate "
                "is given",
            )


def _steps(budget: StepBudget, n_rollouts: int) -> Iterator[tuple[StepView, Any, list[Grant]]]:
    """Ask for all waves of some steps, whose tasks come again with the outcomes of the steps before."""
    rng, world = Random(f"budget {n_rollouts}"), Random(f"world {n_rollouts}")
    tasks = [TaskView(task=Task(id=f"conformance/{i}", prompt=user_prompt("What is 2 + 3?"))) for i in range(TASKS)]
    for step in range(1, STEPS + 1):
        left = n_rollouts
        while left:
            view = StepView(
                step=step,
                tasks=tuple(tasks),
                group_size=GROUP_SIZE,
                max_group_size=2 * GROUP_SIZE,
                budget=n_rollouts,
                budget_left=left,
            )
            state = rng.getstate()
            grants = _ask(budget, view, rng)
            yield view, state, grants
            if not grants:
                break
            left -= sum(grant.n for grant in grants)
            for grant in grants:
                task = tasks[grant.task]
                tasks[grant.task] = replace(task, groups=(*task.groups, _outcome(step, grant, world)))
        tasks = [replace(task, prefixes=PREFIXES if world.random() < 0.5 else ()) for task in tasks]


def _ask(budget: StepBudget, view: StepView, rng: Random) -> list[Grant]:
    try:
        grants = ask_budget(budget, view, rng)
    except PluginError as error:
        raise AssertionError(str(error)) from error
    progress()
    return grants


def _outcome(step: int, grant: Grant, world: Random) -> GroupOutcome:
    """Write an outcome; some rollouts are masked, and a clock was read."""
    success = world.random()
    rewards = [None if world.random() < 0.1 else float(world.random() < success) for _ in range(grant.n)]
    return GroupOutcome(
        step=step,
        rewards=tuple(rewards),
        n_tokens=grant.n * world.randint(1, 40),
        seconds=world.random(),
        from_prefix=grant.prefix is not None,
    )
