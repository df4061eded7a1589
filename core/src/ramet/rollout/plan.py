"""The plan of one call of the rollouts, and the check that it was done.

Training, validation and evaluation differ only in their plan.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

from ramet.config.schema import RolloutConfig
from ramet.errors import RametError
from ramet.rollout.prefixes import StoredPrefix
from ramet.rollout.record import GroupRecord
from ramet.types import Group, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """How many rollouts per task, and how they are sampled. None: as configured.

    `branch` False starts all rollouts from the prompt. `salt` keeps the seeds of training, validation and evaluation
    apart: `train`, `valid`, `eval` or `greedy`. `tool_calls`: calls that a rollout may make of single tools; a further
    one is answered with an error. `step_deadline` False: `rollout.step_deadline_s` does not apply, since a measurement
    may take as long as it takes. Every rollout keeps its own deadline. `roots`: run only these of each group's
    rollouts, by number, without forks; each has the seed that it has in the complete group. `counted` False leaves
    these rollouts out of the metrics `rollout/…`: they belong to no step, or the caller counts them. `kept` False: only
    `on_group` gets the groups and the call returns none, so that they need not all be in memory at once. `recorded`:
    they will be recorded as a step's, so workers in other processes keep them until then. `scored`: such workers score
    them, too, and the caller gets them without tokens and texts (`rollout.metrics.counted`), with all scores.
    """

    group_size: int | None = None
    temperature: float | None = None
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tool_calls: int | None = None
    tool_calls: Mapping[str, int] = field(default_factory=dict)
    branch: bool = True
    salt: str = "train"
    step_deadline: bool = True
    roots: tuple[int, ...] | None = None
    counted: bool = True
    kept: bool = True
    recorded: bool = False
    scored: bool = False

    def resolved(self, config: RolloutConfig) -> ResolvedPlan:
        size = config.group_size if self.group_size is None else self.group_size
        values = {plan_field.name: getattr(self, plan_field.name) for plan_field in fields(self)}
        settled = {
            "group_size": size if self.roots is None else len(self.roots),
            "temperature": config.temperature if self.temperature is None else self.temperature,
            "max_tool_calls": config.max_tool_calls if self.max_tool_calls is None else self.max_tool_calls,
        }
        return ResolvedPlan(**values | settled)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedPlan(RolloutPlan):
    """A plan with nothing left open."""

    group_size: int
    temperature: float
    max_tool_calls: int

    def root(self, n: int) -> int:
        """The number of the n-th root that a group starts; it names the rollout and decides its seed."""
        return n if self.roots is None else self.roots[n]

    def problems(self, max_concurrent: int) -> list[str]:
        """Everything that is wrong with it, in the configuration's terms."""
        problems = []
        if self.group_size < 1:
            problems.append(f"rollout.group_size: must be at least 1, got {self.group_size}")
        if self.group_size > max_concurrent:
            problems.append(
                f"rollout.group_size: {self.group_size} rollouts of one task do not fit rollout.max_concurrent, "
                f"{max_concurrent}"
            )
        if "/" in self.salt or not self.salt:
            problems.append(f"rollout plan: salt must be a word without slashes, got {self.salt!r}")
        return problems


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedGroup:
    """The size and beginning of one group, in place of the plan's. `prefix`: number of the one that all begin with."""

    n: int
    first_root: int = 0  # number of its first root: a task may have several groups in a step
    prefix: int | None = None

    def plan(self, plan: ResolvedPlan) -> ResolvedPlan:
        """The plan of this group."""
        return replace(plan, group_size=self.n, roots=tuple(range(self.first_root, self.first_root + self.n)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """Tasks to run in one call, a complete step or a part of one; it pickles.

    `stored`: by task, groups of earlier steps from whose rollouts a branch policy with `Need.PREFIXES` may start.
    `begin`: of one task, where all of its rollouts begin instead of at the prompt, without forks.
    `granted`: by task, what a step budget granted; None: the plan's size.

    A worker's part of a step has the `names` of its tasks among all of the step's, and `deadline_s`: the rest of
    `rollout.step_deadline_s` if it applies. Over Ray the driver sets it.
    """

    tasks: Sequence[Task]
    step: int
    plan: RolloutPlan = RolloutPlan()
    stored: Mapping[str, GroupRecord] = field(default_factory=dict)
    begin: StoredPrefix | None = None
    granted: Sequence[GrantedGroup] | None = None
    names: Sequence[str] | None = None
    deadline_s: float | None = None
    ticket: int | None = None  # by which a worker keeps its groups until they are recorded

    def task_names(self) -> list[str]:
        """The tasks' part of rollout keys. A task that is in the step twice gets different seeds: its name counts."""
        if self.names is not None:
            return list(self.names)
        seen: Counter[str] = Counter()
        names = []
        for task in self.tasks:
            names.append(task.id if not seen[task.id] else f"{task.id}#{seen[task.id]}")
            seen[task.id] += 1
        return names

    def sizes(self, group_size: int) -> list[int]:
        """Rollouts of each group; `group_size` is the plan's."""
        return [group_size] * len(self.tasks) if self.granted is None else [group.n for group in self.granted]

    def parts(self, n: int) -> list[RolloutRequest]:
        """Split it into `n` parts of neighbouring tasks, or into one for each task if there are fewer."""
        names, n = self.task_names(), min(n, len(self.tasks))
        bounds = [len(names) * part // n for part in range(n + 1)] if n else []
        return [self._part(names, slice(*pair)) for pair in pairwise(bounds)]

    def _part(self, names: Sequence[str], which: slice) -> RolloutRequest:
        tasks = self.tasks[which]
        stored = {task.id: self.stored[task.id] for task in tasks if task.id in self.stored}
        granted = None if self.granted is None else self.granted[which]
        return replace(self, tasks=tasks, names=names[which], stored=stored, granted=granted)


class StepDeadline:
    """The rest of `rollout.step_deadline_s` for the groups of one call. It counts from the first question, when the
    first of them starts: before that they may have waited for groups of other calls (`train.staleness`).
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started: float | None = None

    def left(self) -> float:
        """Seconds; 0 if the time is over."""
        now = time.monotonic()
        self._started = now if self._started is None else self._started
        return max(0.0, self._seconds - (now - self._started))


def check_groups(groups: Sequence[Group], tasks: Sequence[Task], size: int | Sequence[int]) -> None:
    """Raise `RametError` unless there is one group per task, in order, of `size` rollouts each, or of these sizes.

    Masked ones count, and those that the branch policy left of the budget. Fewer rollouts than asked for would be a
    smaller step, or an empty one, that looks like any other.
    """
    sizes = [size] * len(tasks) if isinstance(size, int) else size
    n_rollouts, asked = sum(len(group.rollouts) for group in groups), sum(sizes)
    in_order = [group.task.id for group in groups] == [task.id for task in tasks]
    wrong = [
        f"{group.task.id} has {n} of {size}"
        for group, size in zip(groups, sizes, strict=False)
        if (n := len(group.rollouts)) + group.n_unused != size
    ]
    if in_order and not wrong:
        return
    detail = f": {', '.join(wrong[:3])}" if wrong else ""
    raise RametError(
        f"asked for {asked} rollouts of {len(tasks)} tasks, got {n_rollouts} of {len(groups)}{detail}; the "
        "step is not used"
    )
