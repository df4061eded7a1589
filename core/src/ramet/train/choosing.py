"""Which tasks a step learns from: those that the sampler gives, and others for groups that teach nothing.

Dynamic sampling (DAPO, arXiv 2503.14476, §3.2): a group whose rewards are all equal has no advantage. With
`train.resample_rounds` such groups are replaced, all of a round together, by groups of the next tasks; what still has
no signal after the last round stays, so that a step always has its size.

Steps draw strictly one after the other, also while several of them play (`train.staleness`), so the state of the
sampler after a step is well defined: it is what the step's checkpoint holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.data.sampler import Sampler
from ramet.rollout.scoring import ScoredGroup
from ramet.train.step_metrics import gives_signal
from ramet.types import Task

Play = Callable[[list[Task]], Coroutine[Any, Any, list[ScoredGroup]]]


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
        self._drawn: dict[int, asyncio.Event] = {}  # step -> it draws no more
        self._states: dict[int, dict[str, Any]] = {}  # step -> the sampler's, after its last draw

    async def play(self, step: int, play: Play) -> PlayedStep:
        """Steps must be begun in order. `play` may be called several times."""
        before = self._drawn.pop(step - 1, None)
        drawn = self._drawn[step] = asyncio.Event()

        def draws_no_more() -> None:
            if not drawn.is_set():
                self._states[step] = self._sampler.state()
                drawn.set()

        try:
            if before is not None:
                await before.wait()
            taken = self._sampler.draw(self._tasks_per_step)
            if not self._rounds:
                draws_no_more()
            return await self._play(taken, play)
        finally:  # also for a step that failed: nobody may wait for it for ever
            draws_no_more()

    async def _play(self, taken: list[int], play: Play) -> PlayedStep:
        groups = await play([self._tasks[i] for i in taken])
        replaced: list[ScoredGroup] = []
        for _ in range(self._rounds):
            silent = [place for place, group in enumerate(groups) if not gives_signal(group)]
            more = self._sampler.draw(len(silent), taken)
            if not more:
                break
            taken += more
            played = await play([self._tasks[i] for i in more])
            for place, group in zip(silent, played, strict=False):  # the data may have fewer tasks left
                replaced.append(groups[place])
                groups[place] = group
        return PlayedStep(groups=groups, replaced=replaced)

    def state_after(self, step: int) -> dict[str, Any]:
        """The sampler's state after the draws of a step that was played; asked for once."""
        return self._states.pop(step)
