"""Rollouts in the live line: how many are done, their turns, forks, tools, and how fast tokens come."""

from __future__ import annotations

import time

from ramet.rollout.progress import RolloutProgress
from ramet.tracking.columns import count
from ramet.tracking.live import Part


class TokenRate:
    """Sampled tokens per second since rollouts began to run, until the newest turn that ended: tokens count then."""

    def __init__(self) -> None:
        self._since: tuple[float, int] | None = None  # when they began, and the tokens until then
        self._newest = (0.0, 0)  # when tokens were last counted, and all tokens then

    def __call__(self, progress: RolloutProgress) -> float | None:
        """Return the rate; None while nothing runs or nothing is counted yet."""
        now = time.monotonic()
        if not progress.total:
            self._since = None
            return None
        if self._since is None or progress.tokens < self._since[1]:  # a lost worker takes its count with it
            self._since = (now, progress.tokens)
        if progress.tokens != self._newest[1]:
            self._newest = (now, progress.tokens)
        began, before = self._since
        return (progress.tokens - before) / (self._newest[0] - began) if progress.tokens > before else None


def rollout_parts(progress: RolloutProgress, rate: TokenRate) -> list[Part]:
    """Rollouts done of all, turns that ended, forks, those in tools, tokens per second. Empty while no rollout runs."""
    tokens_per_s = rate(progress)
    if not progress.total:
        return []
    return [
        Part(f"rollouts {progress.done}/{progress.total}", rank=1),
        Part(f"{progress.turns} {'turn' if progress.turns == 1 else 'turns'}" if progress.turns else "", rank=4),
        Part(f"{progress.forks} forks" if progress.forks else "", rank=5),
        Part(f"{progress.in_tools} in tools", rank=3),
        Part("" if tokens_per_s is None else f"{count(tokens_per_s)} tok/s", rank=4),
    ]
