"""Whether an answer is mathematically equal to a gold answer: shared by the rewards on mathematics.

Words and plain numbers are compared here; the rest goes to math-verify, in a process with a limit of CPU time. What an
answer does to the comparison is the model's doing: beyond the bounds of `bounds`, unreadable or too expensive, it is
wrong, and counted. Only what the host did (a process killed or starved) is not a verdict (None).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum

from ramet import ConfigError, Rollout, Task
from ramet.helpers import ProcessLost, ProcessPool
from ramet_rewards.bounds import refused
from ramet_rewards.boxed import final
from ramet_rewards.config import MathConfig
from ramet_rewards.equality import is_term, number, plain_fraction, plainly_equal, same_number
from ramet_rewards.text import quoted

PREPARE_S = 120.0  # wall time for the gold answers of a task
PATIENCE = 10.0  # wall time waited for, as a multiple of the CPU time allowed
GRACE_S = 2.0  # on top of it
MOST_CHARS = 100_000  # of a final answer: a longer one is looked at no further
SHORT_S = 0.25  # of CPU time
REFILL = 0.1  # seconds of CPU time for each second that passes


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
        self._pool = ProcessPool(
            "ramet_rewards.formula_worker", size=config.workers, deadline_s=deadline_s, prepare_s=PREPARE_S
        )
        self._budget = CpuBudget(config.timeout_s, config.budget_s)

    async def compare(self, golds: Sequence[str], answer: str) -> Verdict | None:
        """Return the best verdict over the gold answers, which have no boxes; None: not judged."""
        stated = final(answer)
        if not stated:
            return Verdict.DIFFERENT
        if len(stated) > max(MOST_CHARS, *(4 * len(gold) for gold in golds)):
            return Verdict.REFUSED
        verdicts = [self._plain(gold, stated) for gold in golds]
        if Verdict.EQUAL in verdicts:
            return Verdict.EQUAL
        undecided = [gold for gold, verdict in zip(golds, verdicts, strict=True) if verdict is None]
        if not undecided:
            return Verdict.REFUSED if Verdict.REFUSED in verdicts else Verdict.DIFFERENT
        return await self._computed(undecided, stated)

    def reason(self, verdict: Verdict | None, golds: Sequence[str], answer: str | None) -> str | None:
        """Return the sentence that explains a verdict; None without one."""
        if verdict is None:
            return None
        if answer is None:
            return "there is no answer"
        stated = final(answer)
        if verdict is Verdict.REFUSED:
            return f"the answer {quoted(stated)} is beyond the bounds of what is computed"
        if verdict is Verdict.EXPENSIVE:
            return f"the answer {quoted(stated)} used up the CPU time of an answer"
        equal = "equals" if verdict is Verdict.EQUAL else "does not equal"
        is_refused_term = verdict is Verdict.DIFFERENT and not self.config.allow_terms and is_term(stated)
        term = "; it is a term, which is not computed (allow_terms=false)" if is_refused_term else ""
        return f"the answer {quoted(stated)} {equal} the gold answer {quoted(*golds)}{term}"

    async def aclose(self) -> None:
        """End the processes."""
        await self._pool.aclose()

    async def _computed(self, golds: Sequence[str], answer: str) -> Verdict | None:
        """The verdict by algebra, in a process."""
        try:
            equal = await self._pool.ask({"golds": golds, "answer": answer}, self._allowance)
        except ProcessLost as error:
            return Verdict.EXPENSIVE if error.by_request else None
        return Verdict.EQUAL if equal else Verdict.DIFFERENT

    @contextmanager
    def _allowance(self) -> Iterator[Mapping[str, float]]:
        """The CPU time of one answer, which is charged if the answer uses it up, or its caller does not wait for it."""
        allowed_s = self._budget.allowed_s()
        try:
            yield {"timeout_s": allowed_s}
        except ProcessLost as error:
            if error.by_request:
                self._budget.spend(allowed_s)
            raise

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


def gold_answers(rollout: Rollout, reward: str) -> list[str]:
    """Return the gold answers without their boxes. Raises `ConfigError` if the task has none."""
    golds = _without_boxes(rollout.task)
    if not golds:
        raise ConfigError(f"task {rollout.task.id!r} has no gold answer; the reward {reward} needs one")
    return golds


def gold_problem(task: Task) -> str | None:
    """Return why no answer to a task can be judged: it has no gold answer. None: it has one."""
    return None if _without_boxes(task) else f"no gold answer, or one with nothing in its box; got {list(task.answer)}"


def _without_boxes(task: Task) -> list[str]:
    return [stated for gold in task.answer if (stated := final(gold))]


class CpuBudget:
    """CPU time for the next answer, so that answers which use all their time cost minutes and not hours.

    One formula can keep a computer algebra system busy for ever, and a policy may find that in every rollout of a step.
    Each of these answers is wrong: it is the model's doing, and "not judged" would be its way out of the training.
    Where they are few, each has its full time. Once they have cost `budget_s`, an answer has `SHORT_S`, which is
    several times what formulas take; one that needs longer is wrong then, without exception. The budget fills up again
    with time. The methods may be called from any thread.
    """

    def __init__(self, timeout_s: float, budget_s: float) -> None:
        self.timeout_s, self.budget_s = timeout_s, budget_s
        self._spent_s = 0.0
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def allowed_s(self) -> float:
        """Return the seconds of the answer that is computed next."""
        with self._lock:
            now = time.monotonic()
            self._spent_s = max(0.0, self._spent_s - REFILL * (now - self._since))
            self._since = now
            return self.timeout_s if self._spent_s < self.budget_s else min(SHORT_S, self.timeout_s)

    def spend(self, seconds: float) -> None:
        """Count an answer that has used up its CPU time."""
        with self._lock:
            self._spent_s += seconds
