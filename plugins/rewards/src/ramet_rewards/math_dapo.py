"""`math_dapo`: 1 or -1, from the last line `Answer: …` of the last turn, as DAPO's prompt asks (arXiv 2503.14476).

The released form compares strings; here the answer is compared as `math` does. With `boxed` it is the last box.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from ramet import Rollout, Score, Task
from ramet_rewards.boxed import last_boxed
from ramet_rewards.comparison import MathComparer, Verdict, gold_answers, gold_problem
from ramet_rewards.config import MathDapoConfig
from ramet_rewards.math import score_of

_LINE = re.compile(r"answer[\s*_]*:\s*([^\n]+)", re.IGNORECASE)
_TAG = re.compile(r"</?\w+>")


class MathDapo:
    per_rollout = True

    def __init__(self, config: MathDapoConfig) -> None:
        self.config = config
        self._comparer = MathComparer(config.math)

    def check_task(self, task: Task) -> str | None:
        return gold_problem(task)

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        golds = gold_answers(group[0], "math_dapo")
        return await asyncio.gather(*(self._score(golds, rollout) for rollout in group))

    async def aclose(self) -> None:
        await self._comparer.aclose()

    async def _score(self, golds: Sequence[str], rollout: Rollout) -> Score | None:
        answer = self._stated(rollout.reply)
        verdict = Verdict.DIFFERENT if answer is None else await self._comparer.compare(golds, answer)
        reason = self._comparer.reason(verdict, golds, answer)
        return score_of(verdict, reason=reason, right=self.config.right, wrong=self.config.wrong)

    def _stated(self, reply: str) -> str | None:
        end = reply[-self.config.last_chars :]
        if self.config.boxed:
            return last_boxed(end)
        lines = _LINE.findall(end)
        return _TAG.sub("", lines[-1]).strip(" \t*_`") if lines else None  # **Answer:** 5 is in bold type
