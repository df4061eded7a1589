"""`math`: is the answer mathematically equal to a gold answer?

Words and plain numbers are judged here; the rest goes to math-verify, in a process with a limit of CPU time. What an
answer does to the scorer is the model's doing and scores 0: beyond the bounds of `bounds`, unreadable, or too expensive
to compute. Only what the host did (a process killed or starved) is no judgement (None), so the rollout is masked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ramet import ConfigError, Rollout, Score
from ramet_rewards.bounds import refused
from ramet_rewards.boxed import final
from ramet_rewards.config import MathConfig
from ramet_rewards.equality import number, plainly_equal, same_number
from ramet_rewards.judge import Judge


class MathReward:
    """1 if the answer equals any gold answer, else 0. Processes start when first needed; may be pickled."""

    per_rollout = True

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
        verdicts = [self._plain(gold, found) for gold in golds]
        if True in verdicts:
            return 1.0
        left = [gold for gold, verdict in zip(golds, verdicts, strict=True) if verdict is None]
        if not found or not left:
            return 0.0
        equal = await asyncio.wrap_future(self._judge.submit(left, found))
        return None if equal is None else float(equal)

    def _plain(self, gold: str, answer: str) -> bool | None:
        """The verdict where it takes no algebra; None where it does."""
        verdict = plainly_equal(gold, answer)
        if verdict is not None:
            return verdict
        wanted = None if self.config.allow_terms else number(gold)
        if wanted is not None:
            return same_number(wanted, answer)
        return None if refused(gold, answer) is None else False


def _check(config: MathConfig) -> None:
    problems = [
        f"rewards.math.params.{name} is {value!r}; allowed: more than 0"
        for name, value in (("timeout_s", config.timeout_s), ("workers", config.workers))
        if value <= 0
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _golds(rollout: Rollout) -> list[str]:
    golds = [found for gold in rollout.task.answer if (found := final(gold))]
    if not golds:
        raise ConfigError(f"task {rollout.task.id!r} has no gold answer; the reward math needs one")
    return golds
