"""How much CPU time the next answer may have, so that answers which use all of theirs cost minutes and not hours.

One formula can keep a computer algebra system busy for ever, and a policy may find that in every rollout of a step.
Each of these answers is wrong: it is the model's doing, and "not judged" would be its way out of the training. Where
they are few, each has its full time. Once they have cost `budget_s`, an answer has `SHORT_S`, which is several times
what formulas take; one that needs longer is wrong then, without exception. The budget fills up again with time.
"""

from __future__ import annotations

import threading
import time

SHORT_S = 0.25
REFILL = 0.1  # seconds of CPU time for each second that passes


class CpuBudget:
    """Of one pool. Its methods may be called from any thread."""

    def __init__(self, timeout_s: float, budget_s: float) -> None:
        self.timeout_s, self.budget_s = timeout_s, budget_s
        self._spent_s = 0.0
        self._since = time.monotonic()
        self._lock = threading.Lock()

    def allowed_s(self) -> float:
        """For the answer that is computed next."""
        with self._lock:
            now = time.monotonic()
            self._spent_s = max(0.0, self._spent_s - REFILL * (now - self._since))
            self._since = now
            return self.timeout_s if self._spent_s < self.budget_s else min(SHORT_S, self.timeout_s)

    def spend(self, seconds: float) -> None:
        """An answer has used up what it was allowed."""
        with self._lock:
            self._spent_s += seconds
