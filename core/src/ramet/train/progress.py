"""The progress of a run, for the live line: step, phase, rollouts, micro-batches, and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ramet.cluster.interfaces import Backend
from ramet.tracking.columns import seconds
from ramet.tracking.live import Part
from ramet.tracking.rollout_parts import TokenRate, rollout_parts

REWARDS = "rewards"  # the phase of a step with rollouts: named once no rollout runs any more
SAVING = "saving"  # a phase of the step that is done, not of the next one
STOPPING = "saving, then stopping"


class TrainProgress:
    """The loop says where it is; `parts` is called by the thread that draws."""

    def __init__(self, backend: Backend, *, total_steps: int, done: int) -> None:
        self._phase = ""
        self._validated: int | None = None  # the step whose weights are validated now
        self._backend = backend
        self._total = total_steps
        self._first = self._done = done
        self._started = self._last = time.monotonic()
        self._rate = TokenRate()

    def stopping(self) -> None:
        """The run ends with the step that is done."""
        self._phase = STOPPING

    def step_done(self, step: int) -> None:
        self._done, self._last = step, time.monotonic()

    def restart_clock(self) -> None:
        """Steps begin now: earlier work is not part of their pace."""
        self._started = self._last = time.monotonic()

    @contextmanager
    def doing(self, phase: str, *, validated: int | None = None) -> Iterator[None]:
        """Name a phase; `validated`: the step whose weights it validates, 0 before the first."""
        before = self._phase, self._validated
        self._phase, self._validated = phase, validated
        try:
            yield
        finally:
            self._phase, self._validated = before

    def parts(self) -> list[Part]:
        if self._phase == STOPPING:
            return [Part(f"step {self._done}/{self._total}"), Part(STOPPING)]
        playing, computing, remaining_s = (
            self._backend.rollouts.progress(),
            self._backend.policy.progress(),
            self._left(),
        )
        phase = "" if self._phase == REWARDS and playing.total else self._phase
        step = self._done if self._phase == SAVING else min(self._done + 1, self._total)
        step = step if self._validated is None else self._validated
        return [
            Part(f"step {step}/{self._total}"),
            Part(phase if computing is None else str(computing), rank=2),
            *rollout_parts(playing, self._rate),
            Part("" if remaining_s is None else f"left {seconds(remaining_s)}", rank=2),
        ]

    def _left(self) -> float | None:
        """Seconds to the end of the last step, at the mean pace of this process's steps."""
        if self._done == self._first:
            return None
        pace = (self._last - self._started) / (self._done - self._first)
        return max(0.0, pace * (self._total - self._done) - (time.monotonic() - self._last))
