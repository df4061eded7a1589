"""`math`: is the answer mathematically equal to a gold answer? How that is decided is in `comparison`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ramet import Rollout, Score, Task
from ramet_rewards.comparison import MathComparer, Verdict, gold_answers, gold_problem
from ramet_rewards.config import MathConfig


class MathReward:
    """1 if the answer equals any gold answer, otherwise 0.

    Its parts count the answers that were not computed to an end.
    """

    per_rollout = True

    def __init__(self, config: MathConfig) -> None:
        self.config = config
        self.comparer = MathComparer(config)

    def __reduce__(self) -> tuple[type[MathReward], tuple[MathConfig]]:
        return MathReward, (self.config,)

    def check_task(self, task: Task) -> str | None:
        return gold_problem(task)

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        golds = gold_answers(group[0], "math")
        answers = sorted({rollout.answer for rollout in group if rollout.answer is not None})
        verdicts = await asyncio.gather(*(self.comparer.compare(golds, answer) for answer in answers))
        judged = dict(zip(answers, verdicts, strict=True))
        return [self._score(golds, rollout.answer, judged) for rollout in group]

    def _score(self, golds: Sequence[str], answer: str | None, judged: Mapping[str, Verdict | None]) -> Score | None:
        verdict = Verdict.DIFFERENT if answer is None else judged[answer]
        return score_of(verdict, reason=self.comparer.reason(verdict, golds, answer))

    async def aclose(self) -> None:
        await self.comparer.aclose()


def score_of(verdict: Verdict | None, *, reason: str | None, right: float = 1.0, wrong: float = 0.0) -> Score | None:
    """Return the score of a verdict. None: not judged."""
    if verdict is None:
        return None
    parts = {str(kind): float(verdict is kind) for kind in (Verdict.REFUSED, Verdict.EXPENSIVE)}
    return Score(value=right if verdict is Verdict.EQUAL else wrong, parts=parts, reason=reason)
