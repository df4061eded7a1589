"""Groups without signal are replaced within a bound, and a resumed run draws the tasks that it would have drawn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from ramet.data.sampler import Sampler
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.doubles import answered_rollout
from ramet.train.groups import gives_signal
from ramet.train.step_rollouts import DataPosition, StepwiseRollouts
from ramet.types import Task, user_prompt

TASKS = [Task(id=str(i), prompt=user_prompt(f"{i}+1"), answer=("2",)) for i in range(12)]


def group(task: Task, *rewards: float) -> ScoredGroup:
    rollouts = (replace(answered_rollout(task, "2"), id=str(i)) for i in range(len(rewards)))
    scored = (ScoredRollout(rollout=one, reward=reward) for one, reward in zip(rollouts, rewards, strict=True))
    return ScoredGroup(task=task, rollouts=tuple(scored))


class Player:
    """Tasks of these numbers give signal."""

    def __init__(self, *signal: int) -> None:
        self.signal = {str(i) for i in signal}
        self.rounds: list[tuple[int, list[int]]] = []

    async def __call__(self, tasks: list[Task], step: int) -> list[ScoredGroup]:
        self.rounds.append((step, [int(task.id) for task in tasks]))
        return [group(task, 1.0, 0.0 if task.id in self.signal else 1.0) for task in tasks]


def make(player: Player, rounds: int, n: int = 12) -> tuple[StepwiseRollouts, Sampler]:
    sampler = Sampler(n, 3, 1, shuffle=False)
    return StepwiseRollouts(player, TASKS[:n], sampler, tasks_per_step=3, rounds=rounds), sampler


def ids(groups: list[ScoredGroup]) -> list[int]:
    return [int(group.task.id) for group in groups]


def test_groups_without_signal_are_replaced_where_they_were_until_the_rounds_are_used_up() -> None:
    player = Player(1, 4, 11)
    played = asyncio.run(make(player, rounds=2)[0].take(1))
    assert player.rounds == [(1, [0, 1, 2]), (1, [3, 4]), (1, [5])]
    assert (ids(played.groups), ids(played.replaced)) == ([5, 1, 4], [0, 2, 3])
    assert ids(played.all) == [5, 1, 4, 0, 2, 3]


def test_without_rounds_nothing_is_replaced() -> None:
    player = Player()
    assert asyncio.run(make(player, rounds=0)[0].take(1)).replaced == []
    assert player.rounds == [(1, [0, 1, 2])]


def test_a_step_that_has_had_every_task_keeps_what_it_has() -> None:
    player = Player()
    played = asyncio.run(make(player, rounds=5, n=5)[0].take(1))
    assert player.rounds == [(1, [0, 1, 2]), (1, [3, 4])]
    assert (ids(played.groups), ids(played.replaced)) == ([3, 4, 2], [0, 1])


def test_rewards_of_single_tokens_are_a_signal_and_one_valid_rollout_is_none() -> None:
    silent = group(TASKS[0], 1.0, 1.0)
    assert not gives_signal(silent)
    assert not gives_signal(group(TASKS[0], 1.0))
    first, second = silent.rollouts
    assert gives_signal(ScoredGroup(task=TASKS[0], rollouts=(first, replace(second, token_rewards={0: 0.5}))))


def test_a_named_reward_tells_groups_apart_instead_of_the_total() -> None:
    """DAPO filters by accuracy: that one of two wrong answers is too long is no signal."""
    first, second = group(TASKS[0], 0.0, -0.5).rollouts
    wrong = ScoredGroup(
        task=TASKS[0],
        rollouts=(
            replace(first, parts={"math": 0.0, "overlong": 0.0}),
            replace(second, parts={"math": 0.0, "overlong": -0.5}),
        ),
    )
    assert gives_signal(wrong) and gives_signal(wrong, ["overlong"]) and not gives_signal(wrong, ["math"])
    assert gives_signal(wrong, ["f1"])  # scores no task of this source: the total

    async def play(tasks: Sequence[Task], step: int) -> list[ScoredGroup]:
        return [replace(wrong, task=task) for task in tasks]

    sampler = Sampler(12, 3, 1, shuffle=False)
    taken = StepwiseRollouts(play, TASKS, sampler, tasks_per_step=3, rounds=1, resample_by=["math"]).take(1)
    assert len(asyncio.run(taken).replaced) == 3


def test_a_run_that_resumes_after_any_step_plays_the_same_tasks() -> None:
    player = Player(1, 4, 8, 10)
    rollouts, _ = make(player, rounds=2)
    positions: dict[int, DataPosition] = {}

    async def story() -> None:
        for step in range(1, 6):
            await rollouts.take(step)
            positions[step] = rollouts.position_after(step)

    asyncio.run(story())
    for step, position in positions.items():
        assert (position.next_group, position.block) == (None, ())
        again = Player(1, 4, 8, 10)
        resumed, sampler = make(again, rounds=2)
        sampler.restore(position.sampler)
        for later in range(step + 1, 6):
            asyncio.run(resumed.take(later))
        assert again.rounds == [one for one in player.rounds if one[0] > step]
