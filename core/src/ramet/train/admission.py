"""Groups that start one by one, by their number, so that engines stay busy while the policy learns (`train.staleness`).

With B = `train.tasks_per_step`, S = `train.staleness` and `trained` steps done, group i (from 0) may start when

    i < (trained + S + 1) * B

and steps take groups strictly in the order of their numbers, however long one of them needs. So tokens are sampled by
weights at most S updates older than the weights that learn from them. Nothing is thrown away, which would starve long
tasks. The data come in the same order in every run: group i has the task of step i // B + 1 of a run without staleness,
and its rollouts have the keys of that step.

With dynamic sampling (`train.resample_rounds`, R) a step takes the next B groups with signal. It leaves out at most R *
B groups without; further ones are taken, so that every step has its size. A group that is left out for sure gives its
place to another group at once. The choice of groups follows only from their rewards and numbers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from ramet.data.sampler import Sampler
from ramet.event_loop import cancel_and_wait
from ramet.rollout.metrics import RolloutMetrics
from ramet.rollout.scoring import ScoredGroup
from ramet.train.groups import gives_signal
from ramet.train.step_rollouts import DataPosition, PlayedStep
from ramet.types import Group, Task

CANCEL_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedGroup:
    """A complete group with its rewards."""

    scored: ScoredGroup
    group: Group  # as it was before the rewards, for metrics
    greedy: tuple[float | None, ...] = ()  # the reward of its greedy rollout, None: masked; empty: no such rollout


PlayGroup = Callable[[Task, int], Coroutine[Any, Any, PlayedGroup]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnTask:
    """The task of one group."""

    number: int
    task: Task
    key_step: int  # of its rollouts' keys, which are unique within a step
    after: DataPosition  # where the draws continue


class TaskStream:
    """Draws the tasks of groups one after the other, in blocks of `block_size` without a task twice."""

    def __init__(self, tasks: Sequence[Task], sampler: Sampler, *, block_size: int, start: DataPosition) -> None:
        """`start`: where to continue; its `next_group` is the number of the first group, and the sampler is there."""
        assert start.next_group is not None
        self._tasks = tasks
        self._sampler = sampler
        self._block_size = block_size
        self._next = start.next_group
        self._block = list(start.block)

    def draw(self) -> DrawnTask:
        number = self._next
        (index,) = self._sampler.draw(1, self._block)
        self._next += 1
        self._block = [*self._block, index] if self._next % self._block_size else []
        return DrawnTask(
            number=number,
            task=self._tasks[index],
            key_step=number // self._block_size + 1,
            after=DataPosition(sampler=self._sampler.state(), next_group=self._next, block=tuple(self._block)),
        )


class _Admitted:
    """A group that has started and is not taken."""

    def __init__(self, drawn: DrawnTask, playing: asyncio.Task[PlayedGroup], resample_by: Collection[str] = ()) -> None:
        self.drawn = drawn
        self._resample_by = resample_by
        self.playing = playing
        self._signal: bool | None = None

    @property
    def error(self) -> BaseException | None:
        """The error with which the group failed."""
        ended = self.playing.done() and not self.playing.cancelled()
        return self.playing.exception() if ended else None

    @property
    def signal(self) -> bool | None:
        """Whether it can be learned from; None: not known yet. A group that failed is taken, which raises."""
        if self._signal is None and self.playing.done():
            failed = self.playing.cancelled() or self.playing.exception() is not None
            self._signal = failed or gives_signal(self.playing.result().scored, self._resample_by)
        return self._signal


class AdmittedRollouts:
    """`ramet.train.step_rollouts.StepRollouts` whose groups run ahead of the steps that take them."""

    def __init__(
        self,
        play: PlayGroup,
        tasks: TaskStream,
        *,
        tasks_per_step: int,
        staleness: int,
        rounds: int,
        done: int,
        last: int,
        first_tokens: int,
        resample_by: Collection[str] = (),
    ) -> None:
        """`done` steps were trained before, `last` is the number of the last one; `first_tokens` is for metrics.

        `resample_by`: rewards that tell the groups apart which are kept (`gives_signal`).
        """
        self._resample_by = resample_by
        self._play = play
        self._tasks = tasks
        self._size = tasks_per_step
        self._staleness = staleness
        self._most_left_out = rounds * tasks_per_step
        self._trained = self._taken = done
        self._last = last
        self._first_tokens = first_tokens
        self._admitted: list[_Admitted] = []  # in the order of their numbers
        self._is_paused = False
        self._ended = asyncio.Event()  # a group, since `failed` looked last
        self._positions: dict[int, DataPosition] = {}
        self._since = time.monotonic()  # the last step was taken, or nothing was admitted yet

    async def take(self, step: int) -> PlayedStep:
        if not self._admitted:
            self._since = time.monotonic()
        kept: list[_Admitted] = []
        left_out: list[_Admitted] = []
        while len(kept) < self._size:
            self._admit()
            admitted = self._admitted[len(kept) + len(left_out)]
            await admitted.playing
            if not admitted.signal and len(left_out) < self._most_left_out:
                left_out.append(admitted)
            else:
                kept.append(admitted)
        del self._admitted[: len(kept) + len(left_out)]
        self._taken = step
        self._positions[step] = max(
            (admitted.drawn for admitted in (*kept, *left_out)), key=lambda drawn: drawn.number
        ).after
        return self._played(kept, left_out)

    async def failed(self) -> NoReturn:
        while True:
            self._ended.clear()
            for error in (admitted.error for admitted in self._admitted):
                if error is not None:
                    raise error
            await self._ended.wait()

    def trained(self, step: int) -> None:
        self._trained = step
        self._admit()

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        self._is_paused = True
        try:
            if running := [admitted.playing for admitted in self._admitted if not admitted.playing.done()]:
                await asyncio.wait(running)
            yield
        finally:
            self._is_paused = False
        self._admit()

    def position_after(self, step: int) -> DataPosition:
        return self._positions.pop(step)

    async def cancel(self) -> None:
        self._is_paused = True
        playing = [admitted.playing for admitted in self._admitted]
        self._admitted.clear()
        await cancel_and_wait(playing, timeout_s=CANCEL_S)

    def _admit(self) -> None:
        """Start the groups that may start now."""
        if self._is_paused:
            return
        signals = [admitted.signal for admitted in self._admitted] if self._most_left_out else []
        n_left_out = sum(surely_left_out(signals, size=self._size, most=self._most_left_out))
        room = (min(self._trained + self._staleness + 1, self._last) - self._taken) * self._size
        for _ in range(room - (len(self._admitted) - n_left_out)):
            drawn = self._tasks.draw()
            playing = asyncio.create_task(self._play(drawn.task, drawn.key_step), name=f"group {drawn.number}")
            self._admitted.append(_Admitted(drawn, playing, self._resample_by))
            playing.add_done_callback(lambda _: self._ended.set())
            if self._most_left_out:
                playing.add_done_callback(lambda _: self._admit())

    def _played(self, kept: Sequence[_Admitted], left_out: Sequence[_Admitted]) -> PlayedStep:
        every = [*kept, *left_out]
        groups = [admitted.playing.result() for admitted in every]
        metrics = RolloutMetrics(self._first_tokens)
        for group in groups:
            metrics.add(group.group)
        now = time.monotonic()
        metrics.seconds, self._since = now - self._since, now
        running = sum(not admitted.playing.done() for admitted in self._admitted)
        return PlayedStep(
            groups=[group.scored for group in groups[: len(kept)]],
            replaced=[group.scored for group in groups[len(kept) :]],
            numbers=tuple(admitted.drawn.number for admitted in every),
            key_steps=tuple(admitted.drawn.key_step for admitted in every),
            greedy=tuple(reward for group in groups for reward in group.greedy),
            metrics={
                **metrics.take(),
                "group/running": float(running),
                "group/waiting": float(len(self._admitted) - running),
            },
        )


def surely_left_out(signals: Iterable[bool | None], *, size: int, most: int) -> list[bool]:
    """Say which groups are left out, in their order from the first of a step, whatever those turn out to be whose
    signal is not known yet (None). A step takes `size` groups and leaves out the first `most` without signal.
    """
    decisions: list[bool] = []
    taken = left_out = 0  # by the step that the next group belongs to; after an unknown one: the most that may be
    all_known = True
    for signal in signals:
        all_known = all_known and signal is not None
        if all_known:
            leaves = not signal and left_out < most
            left_out += leaves
            taken += not leaves
            if taken == size:
                taken = left_out = 0
        else:
            left_out += not signal
            leaves = signal is False and left_out <= most
        decisions.append(leaves)
    return decisions
