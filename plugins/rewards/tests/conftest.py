"""Finished rollouts, written by hand."""

from __future__ import annotations

import pytest

from ramet import Rollout, StopReason, Task, user_prompt
from ramet.testing.doubles import written_rollout


class Write:
    """Rollouts of one task."""

    def answer(self, answer: str | None, *golds: str, id: str = "0") -> Rollout:
        task = Task(id="t", prompt=user_prompt("?"), answer=golds)
        return written_rollout(task, [f"<answer>{answer}</answer>"], answer=answer, id=id)

    def turns(self, *turns: str, results: tuple[str, ...] = (), answer: str | None = "1") -> Rollout:
        rollout = written_rollout(Task(id="t", prompt=user_prompt("?"), answer=("1",)), turns, results=results)
        stop = StopReason.END if answer is None else StopReason.ANSWER
        return Rollout(id=rollout.id, task=rollout.task, segments=rollout.segments, stop=stop, answer=answer)


@pytest.fixture
def write() -> Write:
    return Write()
