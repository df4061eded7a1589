"""`math`: is the answer mathematically equal to a gold answer?

Plainly equal or different ones are judged here; the rest goes to math-verify, in a process with a deadline. A deadline
missed or a process lost is no judgement (None), so the rollout is masked; an answer that cannot be parsed is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ramet import ConfigError, Rollout, Score
from ramet_rewards.boxed import final
from ramet_rewards.config import MathConfig
from ramet_rewards.equality import plainly_equal
from ramet_rewards.judge import Judge


class MathReward:
    """1 if the answer equals any gold answer, else 0. Processes start when first needed; may be pickled."""

    def __init__(self, config: MathConfig) -> None:
        _check(config)
        self.config = config
        self._judge = Judge(config.workers, config.timeout_s)

    def __reduce__(self) -> tuple[type[MathReward], tuple[MathConfig]]:
        return MathReward, (self.config,)

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | Score | None]:
        scores: dict[str | None, float | None] = {None: 0.0}
        answers = sorted({rollout.answer for rollout in group if rollout.answer is not None})
        golds = _golds(group[0])
        judged = await asyncio.gather(*(self._score(golds, answer) for answer in answers))
        scores.update(zip(answers, judged, strict=True))
        return [scores[rollout.answer] for rollout in group]

    async def aclose(self) -> None:
        """End the processes."""
        await asyncio.to_thread(self._judge.close)

    async def _score(self, golds: Sequence[str], answer: str) -> float | None:
        found = final(answer)
        plain = [plainly_equal(gold, found) for gold in golds]
        if True in plain:
            return 1.0
        open_golds = [gold for gold, verdict in zip(golds, plain, strict=True) if verdict is None]
        if not found or not open_golds:
            return 0.0
        equal = await asyncio.wrap_future(self._judge.submit(open_golds, found))
        return None if equal is None else float(equal)


def _check(config: MathConfig) -> None:
    problems = [
        f"rewards.math.params.{name} is {value!r}; allowed: more than 0"
        for name, value in (("timeout_s", config.timeout_s), ("workers", config.workers))
        if value <= 0
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _golds(rollout: Rollout) -> list[str]:
    golds = [final(gold) for gold in rollout.task.answer]
    if not any(golds):
        raise ConfigError(f"task {rollout.task.id!r} has no gold answer; the reward math needs one")
    return golds
