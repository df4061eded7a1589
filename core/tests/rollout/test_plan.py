"""The time that the groups of one call have."""

from __future__ import annotations

import math

import pytest

from ramet.errors import RametError
from ramet.rollout import plan
from ramet.rollout.plan import GrantedGroup, RolloutRequest, StepDeadline, check_groups
from ramet.testing.doubles import answered_rollout
from ramet.types import Group, Task, user_prompt


def test_the_time_of_a_call_begins_with_its_first_group_and_ends_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(plan.time, "monotonic", lambda: now[0])
    deadline = StepDeadline(10.0)
    now[0] = 500.0  # the first group waited for groups of other calls
    assert deadline.left() == 10.0
    now[0] = 504.0
    assert deadline.left() == 6.0
    now[0] = 511.0
    assert deadline.left() == 0.0
    assert StepDeadline(math.inf).left() == math.inf


def test_parts_of_a_request_keep_what_was_granted_to_their_tasks() -> None:
    tasks = [Task(id=str(i), prompt=user_prompt("?")) for i in range(3)]
    granted = [GrantedGroup(n=n, first_root=n) for n in (1, 2, 3)]
    request = RolloutRequest(tasks=tasks, step=1, granted=granted)
    assert [part.sizes(8) for part in request.parts(3)] == [[1], [2], [3]]
    assert [part.granted for part in request.parts(2)] == [granted[:1], granted[1:]]
    assert RolloutRequest(tasks=tasks, step=1).parts(1)[0].sizes(8) == [8, 8, 8]


def test_granted_groups_are_checked_by_their_own_sizes() -> None:
    task = Task(id="t", prompt=user_prompt("?"))
    groups = [Group(task=task, rollouts=(answered_rollout(task, "2"),) * n) for n in (1, 2)]
    check_groups(groups, [task, task], [1, 2])
    with pytest.raises(RametError, match="asked for 4 rollouts of 2 tasks, got 3 of 2: t has 1 of 2; the step"):
        check_groups(groups, [task, task], [2, 2])
