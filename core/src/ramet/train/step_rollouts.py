"""The rollouts of a step: which tasks it learns from, and which later steps are played meanwhile.

Dynamic sampling (DAPO, arXiv 2503.14476, §3.2): a group whose rewards are all equal has no advantage. With
`train.resample_rounds` such groups are replaced, all of a round together, by groups of the next tasks; what still has
no signal after the last round stays, so that a step always has its size.

Asynchronous rollouts (`train.staleness`, S): step k + S may begin when the rollouts of step k are complete, that is,
under the weights after step k - 1. It is learned from under those after step k + S - 1, so no token lags more than S
updates.

Steps draw their tasks strictly one after the other, also while several of them play, so the state of the sampler after
a step is well defined: it is what the step's checkpoint holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.data.sampler import Sampler
from ramet.rollout.scoring import ScoredGroup
from ramet.train.groups import gives_signal
from ramet.types import Task

CANCEL_S = 5.0
PlayTasks = Callable[[list[Task]], Coroutine[Any, Any, list[ScoredGroup]]]
PlayStep = Callable[[int], Coroutine[Any, Any, "PlayedStep"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    groups: list[ScoredGroup]  # to learn from, as many as train.tasks_per_step
    replaced: list[ScoredGroup]  # without signal, in the order in which they were replaced

    @property
    def all(self) -> list[ScoredGroup]:
        return [*self.groups, *self.replaced]


class TaskChooser:
    """Plays steps, each with the tasks that are next."""

    def __init__(self, tasks: Sequence[Task], sampler: Sampler, *, tasks_per_step: int, rounds: int) -> None:
        self._tasks = tasks
        self._sampler = sampler
        self._tasks_per_step = tasks_per_step
        self._rounds = rounds
        self._drawn: dict[int, asyncio.Event] = {}  # step -> set when it draws no more
        self._states: dict[int, dict[str, Any]] = {}  # step -> the sampler's, after its last draw

    async def play(self, step: int, play: PlayTasks) -> PlayedStep:
        """Steps must be begun in order. `play` may be called several times."""
        before = self._drawn.pop(step - 1, None)
        drawn = self._drawn[step] = asyncio.Event()

        def close_draws() -> None:
            if not drawn.is_set():
                self._states[step] = self._sampler.state()
                drawn.set()

        try:
            if before is not None:
                await before.wait()
            taken = self._sampler.draw(self._tasks_per_step)
            if not self._rounds:
                close_draws()
            return await self._play(taken, play)
        finally:  # also where this step failed: the next one must not wait for it forever
            close_draws()

    async def _play(self, taken: list[int], play: PlayTasks) -> PlayedStep:
        groups = await play([self._tasks[i] for i in taken])
        replaced: list[ScoredGroup] = []
        for _ in range(self._rounds):
            silent = [i for i, group in enumerate(groups) if not gives_signal(group)]
            more = self._sampler.draw(len(silent), taken)
            if not more:
                break
            taken += more
            played = await play([self._tasks[i] for i in more])
            for i, group in zip(silent, played, strict=False):  # the data may have fewer tasks left
                replaced.append(groups[i])
                groups[i] = group
        return PlayedStep(groups=groups, replaced=replaced)

    def state_after(self, step: int) -> dict[str, Any]:
        """The sampler's state after the draws of a step that was played; asked for once."""
        return self._states.pop(step)


class AsyncRollouts:
    """Plays steps up to `last` through `play`, at most `staleness` of them after the one that is taken."""

    def __init__(self, play: PlayStep, *, staleness: int, last: int) -> None:
        self._play = play
        self._staleness = staleness
        self._last = last
        self._playing: dict[int, asyncio.Task[PlayedStep]] = {}

    async def take(self, step: int) -> PlayedStep:
        """What this step played; the later steps that may run meanwhile are running when this returns."""
        self._start(step)
        played = await self._playing[step]
        del self._playing[step]
        for later in range(step + 1, min(step + self._staleness, self._last) + 1):
            self._start(later)
        return played

    @property
    def playing(self) -> bool:
        """Whether a step is running, or played and not taken."""
        return bool(self._playing)

    async def settle(self) -> None:
        """Wait until nothing plays. What was played is kept, and so is what failed: `take` gives or raises it."""
        await asyncio.wait(self._playing.values())

    async def cancel(self) -> None:
        """Cancel everything that is not taken, and wait up to `CANCEL_S` for it to end."""
        playing = list(self._playing.values())
        self._playing.clear()
        for task in playing:
            task.cancel()
        if playing:
            done, _ = await asyncio.wait(playing, timeout=CANCEL_S)
            for task in done:
                if not task.cancelled():
                    task.exception()  # its step is never taken; reading the exception keeps asyncio from reporting it

    def _start(self, step: int) -> None:
        if step not in self._playing:
            self._playing[step] = asyncio.create_task(self._play(step), name=f"rollouts of step {step}")
