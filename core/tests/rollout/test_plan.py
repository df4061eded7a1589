"""The time that the groups of one call have."""

from __future__ import annotations

import math

import pytest

from ramet.rollout import plan
from ramet.rollout.plan import StepDeadline


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
