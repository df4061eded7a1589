"""Leaving out tasks whose prompt is too long, and noticing tasks that are trained on and measured; both with counts."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ramet.data.layout import value_at
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
    filtered = Filtered(tasks=kept, left_out=len(tasks) - len(kept), longest=max(lengths, default=0))
    counts = f"{filtered.left_out} of {len(tasks)} tasks are longer than data.max_prompt_tokens={max_prompt_tokens}"
    if tasks and not kept:
        raise ConfigError(f"no task is left: {counts}; the longest has {filtered.longest} tokens")
    if filtered.left_out:
        logger.warning("left out: %s (longest: %d tokens)", counts, filtered.longest)
    return filtered


def difficulty_of(task: Task, column: str) -> float:
    """The number in this column of a task. Raises `ConfigError`; rows of files were checked when they were read."""
    value = value_at(task.metadata, column)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"data.columns.difficulty={column}: task {task.id!r} has no number there")
    return float(value)


def leave_out_by_difficulty(tasks: Sequence[Task], column: str, bounds: Mapping[str, float]) -> list[Task]:
    """Return the tasks from `min` to `max` of `data.difficulty`, inclusively. Raises `ConfigError` if none is left."""
    least, most = bounds.get("min", -math.inf), bounds.get("max", math.inf)
    levels = [difficulty_of(task, column) for task in tasks]
    kept = [task for task, level in zip(tasks, levels, strict=True) if least <= level <= most]
    setting = f"data.difficulty={{{', '.join(f'{name}: {bound:g}' for name, bound in bounds.items())}}}"
    if not kept:
        raise ConfigError(f"no task is left: {setting}; the data has {min(levels):g} to {max(levels):g}")
    if len(kept) < len(tasks):
        logger.warning("left out: %d of %d tasks are outside %s", len(tasks) - len(kept), len(tasks), setting)
    return kept


def warn_of_chat_markup(tasks: Sequence[Task], count: Callable[[Task], int], key: str) -> int:
    """How many tasks have special tokens of the chat template in their own text, which could speak for another role."""
    marked = [task.id for task in tasks if count(task)]
    if marked:
        logger.warning(
            "%d of %d tasks of %s have chat markup in their prompts, which becomes special tokens (the first: %s); "
            "data.chat_markup=neutralise has it read as text",
            len(marked),
            len(tasks),
            key,
            ", ".join(marked[:3]),
        )
    return len(marked)


def warn_of_overlap(train: Sequence[Task], valid: Sequence[Task]) -> int:
    """How many tasks of `valid` ask what `train` asks too; logged, since it flatters every measurement."""
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
