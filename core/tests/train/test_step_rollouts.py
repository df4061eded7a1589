"""Groups without signal are replaced within a bound, the sampler's state after a step does not depend on timing, and
rollouts of later steps run no further ahead of the update than allowed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from ramet.data.sampler import Sampler
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.rollouts import answered_rollout
from ramet.train.groups import gives_signal
from ramet.train.step_rollouts import AsyncRollouts, PlayedStep, TaskChooser
from ramet.types import Task, user_prompt

TASKS = [Task(id=str(i), prompt=user_prompt(f"{i}+1"), answer=("2",)) for i in range(12)]


def group(task: Task, *rewards: float) -> ScoredGroup:
    rollouts = (replace(answered_rollout(task, "2"), id=str(i)) for i in range(len(rewards)))
    scored = (ScoredRollout(rollout=one, reward=reward) for one, reward in zip(rollouts, rewards, strict=True))
    return ScoredGroup(task=task, rollouts=tuple(scored))


class Player:
    """Tasks of these numbers give signal. `delays` seconds pass in a step's rounds."""

    def __init__(self, *signal: int, delays: dict[int, float] | None = None) -> None:
        self.signal = {str(i) for i in signal}
        self.delays = delays or {}
        self.rounds: list[tuple[int, list[int]]] = []

    async def play(self, chooser: TaskChooser, step: int) -> PlayedStep:
        async def one(tasks: list[Task]) -> list[ScoredGroup]:
            self.rounds.append((step, [int(task.id) for task in tasks]))
            await asyncio.sleep(self.delays.get(step, 0))
            return [group(task, 1.0, 0.0 if task.id in self.signal else 1.0) for task in tasks]

        return await chooser.play(step, one)


def make(rounds: int, n: int = 12) -> tuple[TaskChooser, Sampler]:
    sampler = Sampler(n, 3, 1, shuffle=False)
    return TaskChooser(TASKS[:n], sampler, tasks_per_step=3, rounds=rounds), sampler


def ids(groups: list[ScoredGroup]) -> list[int]:
    return [int(group.task.id) for group in groups]


def test_groups_without_signal_are_replaced_where_they_were_until_the_rounds_are_used_up() -> None:
    player, (chooser, _) = Player(1, 4, 11), make(rounds=2)
    played = asyncio.run(player.play(chooser, 1))
    assert player.rounds == [(1, [0, 1, 2]), (1, [3, 4]), (1, [5])]
    assert (ids(played.groups), ids(played.replaced)) == ([5, 1, 4], [0, 2, 3])
    assert ids(played.all) == [5, 1, 4, 0, 2, 3]


def test_without_rounds_nothing_is_replaced() -> None:
    player, (chooser, _) = Player(), make(rounds=0)
    assert asyncio.run(player.play(chooser, 1)).replaced == []
    assert player.rounds == [(1, [0, 1, 2])]


def test_a_step_that_has_had_every_task_keeps_what_it_has() -> None:
    player, (chooser, _) = Player(), make(rounds=5, n=5)
    played = asyncio.run(player.play(chooser, 1))
    assert player.rounds == [(1, [0, 1, 2]), (1, [3, 4])]
    assert (ids(played.groups), ids(played.replaced)) == ([3, 4, 2], [0, 1])


def test_rewards_of_single_tokens_are_a_signal_and_one_valid_rollout_is_none() -> None:
    silent = group(TASKS[0], 1.0, 1.0)
    assert not gives_signal(silent)
    assert not gives_signal(group(TASKS[0], 1.0))
    first, second = silent.rollouts
    assert gives_signal(ScoredGroup(task=TASKS[0], rollouts=(first, replace(second, token_rewards={0: 0.5}))))


@pytest.mark.parametrize("delays", [{1: 0.02}, {2: 0.02}, {3: 0.02}, {}])
def test_steps_that_play_at_once_draw_one_after_the_other(delays: dict[int, float]) -> None:
    player, (chooser, sampler) = Player(4, 5, 6, 7, 8, 9, delays=delays), make(rounds=1)

    async def three() -> list[PlayedStep]:
        return await asyncio.gather(*(player.play(chooser, step) for step in (1, 2, 3)))

    played = asyncio.run(three())
    assert [ids(one.groups) for one in played] == [[3, 4, 5], [6, 7, 8], [9, 0, 1]]
    assert [ids(one.replaced) for one in played] == [[0, 1, 2], [], [10, 11]]
    states = [chooser.state_after(step) for step in (1, 2, 3)]
    assert [state[""]["drawn"] for state in states] == [6, 9, 14]
    assert sampler.state() == states[-1]


def test_a_run_that_resumes_after_any_step_plays_the_same_tasks() -> None:
    player, (chooser, _) = Player(1, 4, 8, 10), make(rounds=2)

    async def story() -> dict[int, dict[str, object]]:
        found = {}
        for step in range(1, 6):
            await player.play(chooser, step)
            found[step] = chooser.state_after(step)
        return found

    states = asyncio.run(story())
    for step, state in states.items():
        again, (resumed, sampler) = Player(1, 4, 8, 10), make(rounds=2)
        sampler.restore(state)
        for later in range(step + 1, 6):
            asyncio.run(again.play(resumed, later))
        assert again.rounds == [one for one in player.rounds if one[0] > step]


def test_nobody_waits_for_a_step_that_failed() -> None:
    player, (chooser, _) = Player(), make(rounds=1)

    async def broken(tasks: list[Task]) -> list[ScoredGroup]:
        await asyncio.sleep(0.01)
        raise ValueError("engine")

    async def both() -> list[object]:
        first = asyncio.create_task(chooser.play(1, broken))
        second = asyncio.create_task(player.play(chooser, 2))
        return await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 5)

    failed, played = asyncio.run(both())
    assert isinstance(failed, ValueError) and isinstance(played, PlayedStep)


class Played:
    """Plays steps that end when they are let go; notes what began, and what was cut."""

    def __init__(self) -> None:
        self.began: list[int] = []
        self.cut: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}

    async def __call__(self, step: int) -> PlayedStep:
        self.began.append(step)
        try:
            await self.ends.setdefault(step, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.cut.append(step)
            raise
        if step == 13:
            raise ValueError("step 13")
        return PlayedStep(groups=[], replaced=[])

    def end(self, *steps: int) -> None:
        for step in steps:
            self.ends.setdefault(step, asyncio.Event()).set()


def play(staleness: int, last: int, story: Callable[[AsyncRollouts, Played], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        played = Played()
        await story(AsyncRollouts(played, staleness=staleness, last=last), played)

    asyncio.run(asyncio.wait_for(run(), 10))


async def _breathe() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_without_staleness_a_step_begins_when_it_is_asked_for() -> None:
    async def story(ahead: AsyncRollouts, played: Played) -> None:
        played.end(1, 2)
        await ahead.take(1)
        await _breathe()
        assert played.began == [1] and not ahead.playing
        await ahead.take(2)
        assert played.began == [1, 2]

    play(0, 9, story)


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_so_many_steps_run_ahead_and_none_after_the_last(staleness: int) -> None:
    async def story(ahead: AsyncRollouts, played: Played) -> None:
        played.end(*range(10))
        for step in range(1, 6):
            await ahead.take(step)
            await _breathe()
            assert played.began == list(range(1, min(step + staleness, 5) + 1))

    play(staleness, 5, story)


def test_a_step_does_not_begin_before_the_one_that_bounds_its_lag_is_complete() -> None:
    async def story(ahead: AsyncRollouts, played: Played) -> None:
        taking = asyncio.create_task(ahead.take(1))
        await _breathe()
        assert played.began == [1]
        played.end(1)
        await taking
        await _breathe()
        assert played.began == [1, 2]

    play(1, 9, story)


def test_settling_waits_for_what_plays_and_keeps_it_failures_too() -> None:
    async def story(ahead: AsyncRollouts, played: Played) -> None:
        played.end(12, 13)
        await ahead.take(12)
        await ahead.settle()
        assert ahead.playing
        with pytest.raises(ValueError, match="step 13"):
            await ahead.take(13)

    play(1, 99, story)


def test_cancelling_cuts_everything_and_leaves_nothing_for_asyncio_to_complain_of(caplog: Any) -> None:
    async def story(ahead: AsyncRollouts, played: Played) -> None:
        played.end(12, 13)
        await ahead.take(12)
        await _breathe()
        await ahead.cancel()
        assert not ahead.playing
        assert played.began == [12, 13, 14] and played.cut == [14]

    play(2, 99, story)
    assert "never retrieved" not in caplog.text
