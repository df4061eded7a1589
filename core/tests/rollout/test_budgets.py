"""Step budgets: what `contrast` and `random` grant, and answers that are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ramet.config.schema import BudgetKind
from ramet.errors import PluginError
from ramet.rollout.branching.budgets import ContrastBudget, RandomBudget, step_budget
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.branching.grants import ask_budget
from ramet.testing.step_budget import check_step_budget
from ramet.types import Grant, GroupOutcome, PrefixView, StepView, Task, TaskView, user_prompt


def task(id: str, *rewards: float, step: int = 1, n_tokens: int = 40, **more: Any) -> TaskView:
    """A task with one earlier group of these rewards, if any."""
    seconds = more.pop("seconds", None)
    groups = (GroupOutcome(step=step, rewards=rewards, n_tokens=n_tokens, seconds=seconds),) if rewards else ()
    return TaskView(task=Task(id=id, prompt=user_prompt("?")), groups=groups, **more)


def view(*tasks: TaskView, left: int | None = None, step: int = 2) -> StepView:
    """A step of two tasks, four rollouts each."""
    left = 8 if left is None else left
    return StepView(step=step, tasks=tasks, group_size=4, max_group_size=8, budget=8, budget_left=left)


def granted(view: StepView, *, per_second: bool = False) -> dict[str, int]:
    grants = ContrastBudget(per_second=per_second).allocate(view, Random(0))
    return {view.tasks[grant.task].task.id: grant.n for grant in grants}


FAILED, SOLVED = task("failed", *12 * [0.0], n_tokens=120), task("solved", *12 * [1.0], n_tokens=120)
MIXED = task("mixed", 0, 1, 0, 1)


@pytest.mark.parametrize("budget", [ContrastBudget(), ContrastBudget(per_second=True), RandomBudget()])
def test_the_contract_is_kept(budget: ContrastBudget | RandomBudget) -> None:
    check_step_budget(budget)


def test_contrast_prefers_tasks_whose_outcomes_differed_and_probes_those_without_outcomes() -> None:
    assert granted(view(FAILED, SOLVED, MIXED)) == {"mixed": 4}
    assert granted(view(FAILED, SOLVED, task("new"), task("other"))) == {"new": 2, "other": 2}
    assert granted(view(FAILED, SOLVED, MIXED, left=2)) == {"mixed": 2}
    assert granted(view(MIXED, left=1)) == {}


def test_rewards_of_any_size_count_by_their_variance_within_groups() -> None:
    wide, narrow = task("wide", 0, 100, 0, 100), task("narrow", 40, 60, 40, 60)
    assert granted(view(narrow, wide)) == {"wide": 4}
    then, now = (GroupOutcome(step=1, rewards=4 * (reward,), n_tokens=40) for reward in (0.0, 100.0))
    assert granted(view(replace(task("learned"), groups=(then, now)), narrow)) == {"narrow": 4}


def test_what_a_wave_showed_counts_in_the_next() -> None:
    def second(*rewards: float) -> dict[str, int]:
        """Grants of the second wave, if the first probed `new` and had these rewards."""
        return granted(view(FAILED, SOLVED, task("new", *rewards, step=2, n_tokens=20), task("other"), left=4))

    assert second(0, 1) == {"new": 4}
    assert second(0, 0) == {"other": 2, "new": 2}  # of `failed` and `solved` more is known


def test_a_second_complete_group_in_a_step_is_worth_half() -> None:
    def second(*other: float) -> dict[str, int]:
        """Grants of the second wave, if `mixed` had a complete group in the first, and `other` one before."""
        return granted(view(task("mixed", 0, 1, 0, 1, step=2), task("other", *other), left=4))

    assert second(0, 0, 0, 1) == {"other": 4}
    assert second(0, 0, 0, 0) == {"mixed": 4}


def test_old_outcomes_lose_their_weight_and_then_a_task_is_probed_again() -> None:
    def since(step: int) -> dict[str, int]:
        """Grants in step 100, if the outcomes of `failed` are of this step, and those of `solved` of the one before."""
        solved = replace(SOLVED, groups=(replace(SOLVED.groups[0], step=99),))
        failed = replace(FAILED, groups=(replace(FAILED.groups[0], step=step),))
        return granted(view(solved, failed, step=100))

    assert since(99) == {"solved": 4}
    assert since(1) == {"failed": 2, "solved": 2}


def test_a_task_that_costs_less_is_preferred_by_tokens_or_by_seconds() -> None:
    cheap = task("cheap", 0, 1, 0, 1, n_tokens=10, seconds=9.0)
    quick = task("quick", 0, 1, 0, 1, n_tokens=40, seconds=1.0)
    assert granted(view(quick, cheap)) == {"cheap": 4}
    assert granted(view(quick, cheap), per_second=True) == {"quick": 4}


def test_after_the_first_wave_a_stored_prefix_is_granted_where_it_is_worth_more() -> None:
    rarely = task("t", 0, 0, 0, 1, prefixes=(PrefixView(n_tokens=5, turns=1, reward=0.0),))
    good = replace(rarely, prefixes=(*rarely.prefixes, PrefixView(n_tokens=5, turns=1, reward=1.0)))
    assert ContrastBudget().allocate(view(good), Random(0)) == [Grant(task=0, n=4)]
    assert ContrastBudget().allocate(view(good, left=4), Random(0)) == [Grant(task=0, n=4, prefix=1)]


def test_random_grants_as_much_and_other_tasks_by_the_random_state() -> None:
    step = view(*(task(str(i)) for i in range(8)))
    grants = [RandomBudget().allocate(step, Random(seed)) for seed in range(30)]
    assert {sum(grant.n for grant in one) for one in grants} == {4}
    assert {grant.task for one in grants for grant in one} == set(range(8))


def test_a_policy_with_allocate_is_its_own_budget_unless_the_run_chooses_another() -> None:
    class Allocates(NoBranching):
        def allocate(self, step: StepView, rng: Random) -> Sequence[Grant]:
            return []

    policy = Allocates()
    assert step_budget(BudgetKind.AUTO, policy) is policy
    assert step_budget(BudgetKind.AUTO, NoBranching()) is None
    assert step_budget(BudgetKind.UNIFORM, policy) is None
    assert isinstance(step_budget(BudgetKind.RANDOM, policy), RandomBudget)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ([], "grants nothing, so the step would be empty"),
        (None, "None is not a Grant"),
        ([Grant(task=2, n=1)], "the step has tasks 0 to 1"),
        ([Grant(task=0, n=9)], "a group has 1 to 8 rollouts"),
        ([Grant(task=0, n=0)], "a group has 1 to 8 rollouts"),
        ([Grant(task=0, n=8), Grant(task=1, n=1)], "it grants 9 rollouts, budget left is 8"),
        ([Grant(task=0, n=1, prefix=0)], "the task has no stored prefixes"),
        ([Grant(task=0, n=2.0)], "n is 2.0, not an int"),  # type: ignore[arg-type]
    ],
)
def test_an_impossible_answer_is_refused_with_what_is_wrong(answer: Any, problem: str) -> None:
    class Answers:
        def allocate(self, step: StepView, rng: Random) -> Any:
            return answer

    with pytest.raises(PluginError, match=problem):
        ask_budget(Answers(), view(MIXED, FAILED), Random(0))
