"""`deep_research`: the hierarchical reward of ARPO and AEPO (arXiv 2507.19849, section 3.3), corrected.

    bad_format              the format is broken
    0                       it is right, and so is nothing of the answer
    accuracy                the answer is right, or partly so
    accuracy + bonus        and calls of several tools ran

A weighted sum cannot say this: the format decides whether the answer counts at all, and the bonus needs both. The
package's README lists the errors of `deep_research_release` that this corrects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ramet import CallStatus, Rollout, Score, Task
from ramet_rewards.accuracy import Accuracy
from ramet_rewards.boxed import final, last_boxed
from ramet_rewards.comparison import gold_answers, gold_problem
from ramet_rewards.config import DeepResearchConfig
from ramet_rewards.format import Format


class DeepResearch:
    per_rollout = True

    def __init__(self, config: DeepResearchConfig) -> None:
        self.config = config
        self._format = Format(config.tags)
        self._accuracy = Accuracy(config.accuracy)

    def check_task(self, task: Task) -> str | None:
        return gold_problem(task)

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        golds = gold_answers(group[0], "deep_research")
        return await asyncio.gather(*(self._score(golds, rollout) for rollout in group))

    async def aclose(self) -> None:
        await self._accuracy.aclose()

    async def _score(self, golds: Sequence[str], rollout: Rollout) -> Score | None:
        tools = len({call.name for call in rollout.tool_calls if call.status is CallStatus.OK})
        parts = {"format": 0.0, "accuracy": 0.0, "bonus": 0.0, "tools": float(tools)}
        if rollout.answer is None or not self._is_formatted(rollout, rollout.answer):
            return Score(value=self.config.bad_format, parts=parts)
        accuracy = await self._accuracy.of(golds, final(rollout.answer))
        if accuracy is None:
            return None
        bonus = self.config.bonus if accuracy > 0 and tools >= self.config.bonus_tools else 0.0
        return Score(value=accuracy + bonus, parts={**parts, "format": 1.0, "accuracy": accuracy, "bonus": bonus})

    def _is_formatted(self, rollout: Rollout, answer: str) -> bool:
        return self._format.kept(rollout) and not (self.config.boxed and last_boxed(answer) is None)
