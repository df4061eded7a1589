"""Asking a step budget, and holding it to the contract: it may grant only what exists and what the budget allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from ramet.errors import PluginError
from ramet.plugins import origin
from ramet.plugins.plugin_code import boundary, defined_at
from ramet.types import Grant, StepBudget, StepView


def ask_budget(budget: StepBudget, view: StepView, rng: Random) -> list[Grant]:
    """The budget's grants. Raises `PluginError` naming it if it fails or grants what there is not."""
    name, asked = f"step budget {origin(budget)}", f"step {view.step} with {view.budget_left} rollouts left"
    with boundary(name, "branch_policy", on=f" on {asked}"):
        answer = budget.allocate(view, rng)
        grants = list(answer) if isinstance(answer, Iterable) and not isinstance(answer, str) else [answer]
    problems = [problem for grant in grants for problem in _problems(grant, view)] or _sum_problems(grants, view)
    if problems:
        raise PluginError(
            f"{name} answered {asked} wrongly: {'; '.join(problems)}: return a list of Grant within step.budget_left, "
            f"[] to end the step{defined_at(budget, 'allocate')}"
        )
    return grants


def _problems(grant: object, view: StepView) -> list[str]:
    if not isinstance(grant, Grant):
        return [f"{grant!r:.80} is not a Grant"]
    numbers = {"task": grant.task, "n": grant.n} | ({} if grant.prefix is None else {"prefix": grant.prefix})
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool):
            return [f"{grant}: {name} is {value!r}, not an int"]
    if not 0 <= grant.task < len(view.tasks):
        return [f"{grant}: the step has tasks 0 to {len(view.tasks) - 1}"]
    problems = []
    if not 1 <= grant.n <= view.max_group_size:
        problems.append(f"{grant}: a group has 1 to {view.max_group_size} rollouts (rollout.max_concurrent)")
    prefixes = view.tasks[grant.task].prefixes
    if grant.prefix is not None and not 0 <= grant.prefix < len(prefixes):
        known = f"prefixes 0 to {len(prefixes) - 1}" if prefixes else "no stored prefixes"
        problems.append(f"{grant}: the task has {known}")
    return problems


def _sum_problems(grants: Sequence[Grant], view: StepView) -> list[str]:
    wanted = sum(grant.n for grant in grants)
    if wanted > view.budget_left:
        return [f"it grants {wanted} rollouts, budget left is {view.budget_left}"]
    if not grants and view.budget_left == view.budget:
        return ["it grants nothing, so the step would be empty"]
    return []
