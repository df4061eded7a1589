"""The check that nothing got lost between asking for rollouts and having them."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.errors import RametError
from ramet.types import Group, Task


def check_groups(groups: Sequence[Group], tasks: Sequence[Task], size: int) -> None:
    """Raise `RametError` unless there is one group per task, in order, of `size` rollouts each (masked ones count).

    Fewer rollouts than asked for would be a smaller step, or an empty one, that looks like any other.
    """
    found, asked = sum(len(group.rollouts) for group in groups), len(tasks) * size
    in_order = [group.task.id for group in groups] == [task.id for task in tasks]
    wrong = [f"{group.task.id} has {n}" for group in groups if (n := len(group.rollouts)) != size]
    if in_order and not wrong:
        return
    detail = f"; of {size} each: {', '.join(wrong[:3])}" if wrong else ""
    raise RametError(
        f"asked for {asked} rollouts of {len(tasks)} tasks, got {found} of {len(groups)}{detail}; the step is not used"
    )
