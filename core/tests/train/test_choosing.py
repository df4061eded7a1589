"""Groups without signal are replaced within a bound, and the sampler's state after a step does not depend on timing."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from ramet.data.sampler import Sampler
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.rollouts import answered_rollout
from ramet.train.groups import gives_signal
from ramet.train.step_rollouts import PlayedStep, TaskChooser
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


def test_groups_without_signal_are_replaced_in_their_places_until_the_rounds_are_used_up() -> None:
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


def test_a_run_that_goes_on_behind_any_step_plays_the_same_tasks() -> None:
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
