"""`format_correct`: a fifth for the format, the rest for the answer, each by itself: 0.2, 0.8 or 1.

An answer counts whatever the format is, and the format whatever the answer is: with `deep_research` a right answer in
a broken format costs more than no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ramet import Rollout, Score, Task
from ramet_rewards.accuracy import Accuracy
from ramet_rewards.boxed import final, last_boxed
from ramet_rewards.comparison import gold_answers, gold_problem
from ramet_rewards.config import FormatCorrectConfig
from ramet_rewards.format import Format


class FormatCorrect:
    per_rollout = True

    def __init__(self, config: FormatCorrectConfig) -> None:
        self.config = config
        self._format = Format(config.tags)
        self._accuracy = Accuracy(config.accuracy)

    def check_task(self, task: Task) -> str | None:
        return gold_problem(task)

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        golds = gold_answers(group[0], "format_correct")
        return await asyncio.gather(*(self._score(golds, rollout) for rollout in group))

    async def aclose(self) -> None:
        await self._accuracy.aclose()

    async def _score(self, golds: Sequence[str], rollout: Rollout) -> Score | None:
        answer = rollout.answer
        correct = 0.0 if answer is None else await self._accuracy.of(golds, final(answer))
        if correct is None:
            return None
        boxed = not self.config.boxed or (answer is not None and last_boxed(answer) is not None)
        fine = float(boxed and self._format.kept(rollout))
        value = self.config.format_weight * fine + self.config.correct_weight * correct
        return Score(value=value, parts={"format": fine, "correct": correct})
