"""Rollouts of later steps, played while the steps before them are learned from (`train.staleness`).

Step k + S may begin when the rollouts of step k are complete, that is, under the weights behind step k - 1. It is
learned from under those behind step k + S - 1, so no token lags more than S updates behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ramet.train.choosing import PlayedStep

CANCEL_S = 5.0
Play = Callable[[int], Coroutine[Any, Any, PlayedStep]]


class AsyncRollouts:
    """Plays steps up to `last` through `play`, at most `staleness` of them ahead of the one that is taken."""

    def __init__(self, play: Play, *, staleness: int, last: int) -> None:
        self._play = play
        self._staleness = staleness
        self._last = last
        self._playing: dict[int, asyncio.Task[PlayedStep]] = {}

    async def take(self, step: int) -> PlayedStep:
        """What this step played; those that may run ahead of it are running when this returns."""
        self._start(step)
        played = await self._playing[step]
        del self._playing[step]
        for later in range(step + 1, min(step + self._staleness, self._last) + 1):
            self._start(later)
        return played

    @property
    def playing(self) -> bool:
        """Whether a step is under way, or played and not taken."""
        return bool(self._playing)

    async def settle(self) -> None:
        """Wait until nothing plays. What was played is kept, and so is what failed: `take` gives or raises it."""
        await asyncio.wait(self._playing.values())

    async def cancel(self) -> None:
        """Drop everything, and give it a moment to notice."""
        playing = list(self._playing.values())
        self._playing.clear()
        for task in playing:
            task.cancel()
        if playing:
            done, _ = await asyncio.wait(playing, timeout=CANCEL_S)
            for task in done:
                if not task.cancelled():
                    task.exception()  # nobody takes its step any more, and asyncio is told that it was looked at

    def _start(self, step: int) -> None:
        if step not in self._playing:
            self._playing[step] = asyncio.create_task(self._play(step), name=f"rollouts of step {step}")
