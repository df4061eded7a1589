from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ramet import Task
from ramet.testing.doubles import written_rollout


async def _score_all(benchmark: Any, answers: Sequence[tuple[Task, str | None]]) -> list[dict[str, float]]:
    rollouts = [written_rollout(task, [f"<answer>{answer}</answer>"], answer=answer) for task, answer in answers]
    scores = [dict(await benchmark.score(rollout)) for rollout in rollouts]
    if hasattr(benchmark, "aclose"):
        await benchmark.aclose()
    return scores


@pytest.fixture
def scores() -> Callable[..., list[dict[str, float]]]:
    """Of answers to tasks of a benchmark: pairs of a task and its answer, or None for no answer."""
    return lambda benchmark, *answers: asyncio.run(_score_all(benchmark, answers))


@pytest.fixture
def accuracy() -> Callable[[Any, Task, str | None], float]:
    """Of one answer to one task of a benchmark."""

    def score(benchmark: Any, task: Task, answer: str | None) -> float:
        (found,) = asyncio.run(_score_all(benchmark, [(task, answer)]))
        return found["accuracy"]

    return score
