"""Leaving out tasks whose prompt is too long, and noticing tasks that are trained on and measured; both with counts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ramet.errors import ConfigError
from ramet.types import Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    tasks: list[Task]
    left_out: int
    longest: int  # tokens of the longest prompt, left out or not


def leave_out_long(tasks: Sequence[Task], count_tokens: Callable[[Task], int], max_prompt_tokens: int) -> Filtered:
    """Tasks whose encoded prompt has at most `max_prompt_tokens`. Raises `ConfigError` if none is left."""
    lengths = [count_tokens(task) for task in tasks]
    kept = [task for task, length in zip(tasks, lengths, strict=True) if length <= max_prompt_tokens]
    found = Filtered(tasks=kept, left_out=len(tasks) - len(kept), longest=max(lengths, default=0))
    counts = f"{found.left_out} of {len(tasks)} tasks are longer than data.max_prompt_tokens={max_prompt_tokens}"
    if tasks and not kept:
        raise ConfigError(f"no task is left: {counts}; the longest has {found.longest} tokens")
    if found.left_out:
        logger.warning("left out: %s (longest: %d tokens)", counts, found.longest)
    return found


def warn_of_overlap(train: Sequence[Task], valid: Sequence[Task]) -> int:
    """How many tasks of `valid` ask what `train` asks too; said in the log, since it flatters every measurement."""
    asked = {task.prompt for task in train}
    shared = [task.id for task in valid if task.prompt in asked]
    if shared:
        logger.warning(
            "%d of %d tasks of data.valid have a prompt that data.train has too, the first: %s",
            len(shared),
            len(valid),
            ", ".join(shared[:3]),
        )
    return len(shared)
