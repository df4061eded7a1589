"""Leaving out tasks whose prompt is too long, with counts."""

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
