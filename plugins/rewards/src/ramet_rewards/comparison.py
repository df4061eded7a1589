"""Is an answer mathematically equal to a gold answer? What the rewards on mathematics share.

Words and plain numbers are compared here; the rest goes to math-verify, in a process with a limit of CPU time. What an
answer does to the comparison is the model's doing: beyond the bounds of `bounds`, unreadable or too expensive, it is
wrong, and counted. Only what the host did (a process killed or starved) is not a verdict (None).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from enum import StrEnum

from ramet import ConfigError, Rollout, Task
from ramet_rewards.bounds import refused
from ramet_rewards.boxed import final
from ramet_rewards.config import MathConfig
from ramet_rewards.cpu_budget import CpuBudget
from ramet_rewards.equality import is_term, number, plain_fraction, plainly_equal, same_number
from ramet_rewards.processes import Lost, ScorerPool

PATIENCE = 10.0  # wall time waited for, as a multiple of the CPU time allowed
GRACE_S = 2.0  # on top of it
MOST_CHARS = 100_000  # of a final answer: a longer one is looked at no further


class Verdict(StrEnum):
    EQUAL = "equal"
    DIFFERENT = "different"
    REFUSED = "refused"  # beyond the bounds, so not computed
    EXPENSIVE = "expensive"  # it used its CPU time up, or crashed the process


class MathComparer:
    """Processes start with the first answer that is not plainly equal."""

    def __init__(self, config: MathConfig) -> None:
        self.config = config
        deadline_s = PATIENCE * config.timeout_s + GRACE_S
        self._pool = ScorerPool("ramet_rewards.formula_worker", workers=config.workers, deadline_s=deadline_s)
        self._budget = CpuBudget(config.timeout_s, config.budget_s)

    async def compare(self, golds: Sequence[str], answer: str) -> Verdict | None:
        """The best verdict over the gold answers, which hold no boxes; None: not judged."""
        found = final(answer)
        if not found:
            return Verdict.DIFFERENT
        if len(found) > max(MOST_CHARS, *(4 * len(gold) for gold in golds)):
            return Verdict.REFUSED
        verdicts = [self._plain(gold, found) for gold in golds]
        if Verdict.EQUAL in verdicts:
            return Verdict.EQUAL
        left = [gold for gold, verdict in zip(golds, verdicts, strict=True) if verdict is None]
        if not left:
            return Verdict.REFUSED if Verdict.REFUSED in verdicts else Verdict.DIFFERENT
        return await self._computed(left, found)

    async def aclose(self) -> None:
        """End the processes."""
        await asyncio.to_thread(self._pool.close)

    async def _computed(self, golds: Sequence[str], answer: str) -> Verdict | None:
        """The verdict by algebra, in a process."""
        allowed_s: list[float] = []

        def when_sent() -> Mapping[str, float]:
            allowed_s.append(self._budget.allowed_s())
            return {"timeout_s": allowed_s[0]}

        def count(ended: Future[bool]) -> None:
            """In the thread that asks for the next answer then."""
            if not ended.cancelled() and _is_expensive(ended.exception()):
                self._budget.spend(allowed_s[0])

        asked = self._pool.submit({"golds": golds, "answer": answer}, when_sent)
        asked.add_done_callback(count)
        try:
            equal = await asyncio.wrap_future(asked)
        except Lost as error:
            return Verdict.EXPENSIVE if _is_expensive(error) else None
        return Verdict.EQUAL if equal else Verdict.DIFFERENT

    def _plain(self, gold: str, answer: str) -> Verdict | None:
        """The verdict where it takes no algebra; None where it does."""
        verdict = plainly_equal(gold, answer)
        if verdict is None:
            verdict = self._as_number(gold, answer)
        if verdict is None:
            return None if refused(gold, answer) is None else Verdict.REFUSED
        return Verdict.EQUAL if verdict else Verdict.DIFFERENT

    def _as_number(self, gold: str, answer: str) -> bool | None:
        """Whether an answer is the number that is asked for, unless terms are right too."""
        if self.config.allow_terms:
            return None
        if (wanted := number(gold)) is not None:
            return same_number(wanted, answer)
        if (wanted := plain_fraction(gold)) is None:
            return None
        if same_number(wanted, answer):
            return True
        return False if is_term(answer) else None  # fractions are written in more ways than numbers


def _is_expensive(error: BaseException | None) -> bool:
    return isinstance(error, Lost) and error.by_request


def gold_answers(rollout: Rollout, reward: str) -> list[str]:
    """Without their boxes. Raises `ConfigError` if the task has none."""
    golds = _without_boxes(rollout.task)
    if not golds:
        raise ConfigError(f"task {rollout.task.id!r} has no gold answer; the reward {reward} needs one")
    return golds


def gold_problem(task: Task) -> str | None:
    """Of a task without a gold answer: no answer to it can be judged."""
    return None if _without_boxes(task) else f"no gold answer, or one with nothing in its box; got {list(task.answer)}"


def _without_boxes(task: Task) -> list[str]:
    return [found for gold in task.answer if (found := final(gold))]
