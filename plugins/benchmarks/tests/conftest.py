from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ramet import Task
from ramet.testing.rollouts import written_rollout


@pytest.fixture
def accuracy() -> Callable[[Any, Task, str | None], float]:
    """Of one answer to one task of a benchmark."""

    def score(benchmark: Any, task: Task, answer: str | None) -> float:
        rollout = written_rollout(task, [f"<answer>{answer}</answer>"], answer=answer)
        return float(asyncio.run(benchmark.score(rollout))["accuracy"])

    return score
