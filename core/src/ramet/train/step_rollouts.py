"""The groups that a step learns from, their source, and where the draws of tasks continue after it.

Dynamic sampling (DAPO, arXiv 2503.14476, §3.2): a group whose rewards are all equal has no advantage. With
`train.resample_rounds` such groups are replaced, all of a round together, by groups of the next tasks; what still has
no signal after the last round stays, so that a step always has its size.

Here a step's rollouts run when it is asked for, as with `train.staleness=0`; in `admission` they run ahead, and in
`budgeted` a step budget chooses the groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from ramet.data.sampler import Sampler
from ramet.rollout.scoring import ScoredGroup
from ramet.train.groups import gives_signal
from ramet.types import GroupOutcome, Task

PlayTasks = Callable[[list[Task], int], Coroutine[Any, Any, list[ScoredGroup]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStep:
    """Tuples that are not empty have one entry per group of `all`."""

    groups: list[ScoredGroup]  # to learn from, as many as train.tasks_per_step, or as a step budget granted
    replaced: list[ScoredGroup]  # without signal, in the order in which they were replaced
    numbers: tuple[int, ...] = ()  # of the groups in their order of admission; empty: all began together
    key_steps: tuple[int, ...] = ()  # the steps in their rollouts' keys; empty: the step itself
    greedy: tuple[float | None, ...] = ()  # rewards of greedy rollouts, None: masked; empty: no such rollouts
    metrics: Mapping[str, float] = field(default_factory=dict)  # in addition to what the workers count

    @property
    def all(self) -> list[ScoredGroup]:
        return [*self.groups, *self.replaced]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPosition:
    """The place where the draws of tasks continue after a step, for its checkpoint."""

    sampler: dict[str, Any]  # the sampler's state after the last draw that the step used
    next_group: int | None = None  # its number, where groups are admitted one by one
    block: tuple[int, ...] = ()  # tasks drawn before it that its block must not have again
    outcomes: Mapping[str, tuple[GroupOutcome, ...]] = field(default_factory=dict)  # by task; for a step budget


class StepRollouts(Protocol):
    """Source of the groups of a loop's steps, which it takes one after the other."""

    async def take(self, step: int) -> PlayedStep:
        """The groups of this step, once they are complete. Raises what their rollouts and rewards raise."""
        ...

    async def failed(self) -> NoReturn:
        """Raises the error of a group that no step has taken, as soon as there is one; waits until then."""
        ...

    def trained(self, step: int) -> None:
        """The engines have the weights after this step."""
        ...

    def paused(self) -> AbstractAsyncContextManager[None]:
        """Pause while the context is open: it is entered when running groups have ended. They are kept."""
        ...

    def position_after(self, step: int) -> DataPosition:
        """Return the position after a step that was taken; asked for once."""
        ...

    async def cancel(self) -> None:
        """Cancel groups that run and are not taken, and wait shortly for their end."""
        ...


class StepwiseRollouts:
    """`StepRollouts` that run a step when it is taken, all of its groups together."""

    def __init__(
        self,
        play: PlayTasks,
        tasks: Sequence[Task],
        sampler: Sampler,
        *,
        tasks_per_step: int,
        rounds: int,
        resample_by: Collection[str] = (),
    ) -> None:
        """`play` gives the groups of some tasks of a step, in their order; it may be called several times a step.

        `resample_by`: rewards that tell the groups apart which are kept (`gives_signal`).
        """
        self._resample_by = resample_by
        self._play = play
        self._tasks = tasks
        self._sampler = sampler
        self._tasks_per_step = tasks_per_step
        self._rounds = rounds
        self._positions: dict[int, DataPosition] = {}

    async def take(self, step: int) -> PlayedStep:
        taken = self._sampler.draw(self._tasks_per_step)
        groups = await self._play([self._tasks[i] for i in taken], step)
        replaced: list[ScoredGroup] = []
        for _ in range(self._rounds):
            silent = [i for i, group in enumerate(groups) if not gives_signal(group, self._resample_by)]
            more = self._sampler.draw(len(silent), taken)
            if not more:
                break
            taken += more
            played = await self._play([self._tasks[i] for i in more], step)
            for i, group in zip(silent, played, strict=False):  # the data may have fewer tasks left
                replaced.append(groups[i])
                groups[i] = group
        self._positions[step] = DataPosition(sampler=self._sampler.state())
        return PlayedStep(groups=groups, replaced=replaced)

    async def failed(self) -> NoReturn:
        """Wait for ever: a group fails only in `take`, which raises its error."""
        await asyncio.Future()
        raise AssertionError

    def trained(self, step: int) -> None:
        """Do nothing: no group waits for it."""

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        yield

    def position_after(self, step: int) -> DataPosition:
        return self._positions.pop(step)

    async def cancel(self) -> None:
        """Do nothing: the caller that takes a step cancels it."""
