"""Step budgets: how a step's rollouts are spread over tasks and stored prefixes.

A `StepBudget` is pure, as a branch policy is. The core keeps what it decides by: the outcomes of earlier groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from ramet.types.branch import PrefixView
from ramet.types.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOutcome:
    """Result of one complete group."""

    step: int
    rewards: tuple[float | None, ...]  # of its rollouts, with their token rewards; None: masked or not judged
    n_tokens: int  # sampled in it; what forks share counts once
    seconds: float | None = None  # of its rollouts together; None in deterministic runs, where nothing may read clocks
    from_prefix: bool = False  # all of its rollouts began with a stored prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task that was drawn for the step."""

    task: Task
    groups: tuple[GroupOutcome, ...] = ()  # oldest first: the newest of earlier steps, then all of this step
    prefixes: tuple[PrefixView, ...] = ()  # as in `GroupView`


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """A step budget's view of a step."""

    step: int
    tasks: tuple[TaskView, ...]  # in the order in which they were drawn
    group_size: int
    max_group_size: int  # of one grant
    budget: int  # rollouts of the step, at most
    budget_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One group of n rollouts for `StepView.tasks[task]`.

    It begins as the branch policy decides, with n as its budget. With `prefix`, all n begin with
    `TaskView.prefixes[prefix]` instead, and the branch policy is not asked.
    """

    task: int
    n: int
    prefix: int | None = None


class StepBudget(Protocol):
    """Optional second method of a branch policy (hook 2). Pure: (view of the step, rng) -> groups.

    Asked when a step begins, and again when all groups of the last answer are complete: the view then has their
    outcomes. Grants may have at most `budget_left` rollouts together. `[]` ends the step; the first answer must have a
    grant.
    """

    def allocate(self, step: StepView, rng: Random) -> Sequence[Grant]: ...
