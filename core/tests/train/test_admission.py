"""Groups start by their number and no further ahead than allowed, steps take them in order whatever ends first, and a
resumed run goes on with the next group.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ramet.data.sampler import Sampler
from ramet.rollout.scoring import ScoredGroup, ScoredRollout
from ramet.testing.doubles import answered_rollout
from ramet.train.admission import AdmittedRollouts, PlayedGroup, TaskStream, surely_left_out
from ramet.train.step_rollouts import DataPosition, PlayedStep
from ramet.types import Group, Task, user_prompt

TASKS = [Task(id=str(i), prompt=user_prompt(f"{i}+1"), answer=("2",)) for i in range(7)]
B = 2
Story = Callable[["Ahead"], Coroutine[Any, Any, None]]


def played_group(task: Task, *, signal: bool) -> PlayedGroup:
    rollouts = tuple(replace(answered_rollout(task, "2"), id=str(i)) for i in range(2))
    rewards = (1.0, 0.0 if signal else 1.0)
    scored = tuple(ScoredRollout(rollout=one, reward=reward) for one, reward in zip(rollouts, rewards, strict=True))
    return PlayedGroup(scored=ScoredGroup(task=task, rollouts=scored), group=Group(task=task, rollouts=rollouts))


class Ahead:
    """Groups end when they are let go. `silent` numbers have no signal, `broken` ones fail."""

    def __init__(
        self, staleness: int, *, last: int = 99, rounds: int = 0, silent: Sequence[int] = (), broken: Sequence[int] = ()
    ) -> None:
        self.sampler = Sampler(len(TASKS), B, 1, shuffle=False)
        self.began: list[tuple[str, int]] = []  # task and step of the keys
        self.cut: list[int] = []
        self.silent, self.broken = set(silent), set(broken)
        self.ends: dict[int, asyncio.Event] = {}
        self.trained = 0
        self.started_under: list[int] = []
        self.options = {"tasks_per_step": B, "staleness": staleness, "rounds": rounds, "last": last, "first_tokens": 4}
        self.rollouts = self.make(DataPosition(sampler={}, next_group=0), done=0)

    def make(self, start: DataPosition, *, done: int) -> AdmittedRollouts:
        if start.sampler:
            self.sampler.restore(start.sampler)
        self.first = start.next_group or 0
        self.trained = done
        stream = TaskStream(TASKS, self.sampler, block_size=B, start=start)
        return AdmittedRollouts(self.play, stream, done=done, **self.options)  # type: ignore[arg-type]

    async def play(self, task: Task, step: int) -> PlayedGroup:
        number = self.first + len(self.began)
        self.began.append((task.id, step))
        self.started_under.append(self.trained)
        try:
            await self.ends.setdefault(number, asyncio.Event()).wait()
        except asyncio.CancelledError:
            self.cut.append(number)
            raise
        if number in self.broken:
            raise ValueError(f"group {number}")
        return played_group(task, signal=number not in self.silent)

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self.ends.setdefault(number, asyncio.Event()).set()

    async def train(self, step: int) -> PlayedStep:
        played = await self.rollouts.take(step)
        self.trained = step
        self.rollouts.trained(step)
        await breathe()
        return played


def tell(ahead: Ahead, story: Story) -> None:
    asyncio.run(asyncio.wait_for(story(ahead), 10))


async def breathe() -> None:
    for _ in range(6):
        await asyncio.sleep(0)


def began(step: int) -> list[tuple[str, int]]:
    """All groups up to those of this step: their order is that of a run without staleness."""
    return [(str(i % len(TASKS)), i // B + 1) for i in range(step * B)]


@pytest.mark.parametrize("staleness", [1, 2, 3])
def test_groups_start_as_soon_as_the_weights_allow_it_and_none_after_the_last_step(staleness: int) -> None:
    async def story(ahead: Ahead) -> None:
        taking = asyncio.create_task(ahead.rollouts.take(1))
        await breathe()
        assert ahead.began == began(1 + staleness)  # before any group is complete
        ahead.end(*range(20))
        await taking
        await breathe()
        assert ahead.began == began(1 + staleness)  # the weights have not changed
        ahead.rollouts.trained(1)
        await breathe()
        for step in range(2, 6):
            assert ahead.began == began(min(step + staleness, 5))
            assert (await ahead.train(step)).numbers == (B * step - 2, B * step - 1)

    tell(Ahead(staleness, last=5), story)


def test_a_step_takes_its_groups_in_order_whichever_ends_first() -> None:
    async def story(ahead: Ahead) -> None:
        ahead.end(1, 2, 3)
        taking = asyncio.create_task(ahead.rollouts.take(1))
        await breathe()
        assert not taking.done()
        ahead.end(0)
        played = await taking
        assert [group.task.id for group in played.groups] == ["0", "1"]
        assert (played.numbers, played.key_steps, played.greedy) == ((0, 1), (1, 1), ())
        assert (played.metrics["group/waiting"], played.metrics["group/running"]) == (2, 0)
        assert played.metrics["rollout/rollouts"] == 4

    tell(Ahead(1), story)


def test_groups_without_signal_give_their_place_to_others_until_the_rounds_are_used_up() -> None:
    async def story(ahead: Ahead) -> None:
        ahead.end(*range(30))
        first, second, third = [await ahead.train(step) for step in (1, 2, 3)]
        assert (first.numbers, len(first.replaced)) == ((0, 3, 1, 2), 2)
        assert (second.numbers, len(second.replaced)) == (
            (6, 7, 4, 5),
            2,
        )  # two of them may be left out, 6 is the third
        assert (third.numbers, third.key_steps) == ((8, 9), (5, 5))
        assert [group.task.id for group in second.all] == ["6", "0", "4", "5"]

    tell(Ahead(1, rounds=1, silent=(1, 2, 4, 5, 6)), story)


@pytest.mark.parametrize("seed", range(20))
def test_no_group_lags_more_updates_than_allowed_whatever_ends_when(seed: int) -> None:
    rng = Random(seed)
    staleness, rounds, last = rng.randint(1, 3), rng.randint(0, 2), 6
    silent = [i for i in range(200) if rng.random() < 0.5]

    async def story(ahead: Ahead) -> None:
        for step in range(1, last + 1):
            taking = asyncio.create_task(ahead.rollouts.take(step))
            while not taking.done():
                running = [i for i in range(len(ahead.began)) if not ahead.ends[i].is_set()] if ahead.ends else []
                if running:
                    ahead.end(rng.choice(running))
                await breathe()
            played = taking.result()
            assert len(played.groups) == B and len(played.replaced) <= rounds * B
            numbers = played.numbers[:B]
            assert all(step - 1 - ahead.started_under[number] <= staleness for number in numbers)
            assert sorted(numbers) == list(numbers)
            assert set(played.numbers[B:]) <= set(silent)
            ahead.trained = step
            ahead.rollouts.trained(step)

    tell(Ahead(staleness, last=last, rounds=rounds, silent=silent), story)


def test_a_run_that_resumes_after_any_step_goes_on_with_the_same_groups() -> None:
    silent, positions, steps = (1, 2, 4, 5, 6, 9, 13), {}, []
    whole = Ahead(2, rounds=1, silent=silent, last=6)

    async def story(ahead: Ahead) -> None:
        ahead.end(*range(60))
        for step in range(1, 7):
            steps.append(await ahead.train(step))
            positions[step] = ahead.rollouts.position_after(step)

    tell(whole, story)
    taken = list(itertools.accumulate(len(played.numbers) for played in steps))
    for step, position in positions.items():
        assert position.next_group == taken[step - 1]
        resumed = Ahead(2, rounds=1, silent=silent, last=6)
        resumed.rollouts = resumed.make(position, done=step)

        async def rest(ahead: Ahead, step: int = step) -> None:
            ahead.end(*range(60))
            for later in range(step + 1, 7):
                assert (await ahead.train(later)).numbers == steps[later - 1].numbers

        tell(resumed, rest)
        assert resumed.began == whole.began[taken[step - 1] :][: len(resumed.began)]


def test_nothing_starts_while_it_is_paused_and_what_ran_is_kept_its_failures_too() -> None:
    async def story(ahead: Ahead) -> None:
        ahead.end(0, 1, 3)
        await ahead.rollouts.take(1)
        entered = asyncio.create_task(enter(ahead))
        await breathe()
        ahead.rollouts.trained(1)
        assert not entered.done() and ahead.began == began(2)
        ahead.end(2)
        await entered
        await breathe()
        assert ahead.began == began(3)
        with pytest.raises(ValueError, match="group 3"):
            await ahead.rollouts.take(2)

    async def enter(ahead: Ahead) -> None:
        async with ahead.rollouts.paused():
            await breathe()
            assert ahead.began == began(2)

    tell(Ahead(1, broken=(3,)), story)


def test_a_group_that_fails_is_told_while_the_steps_before_it_train() -> None:
    async def story(ahead: Ahead) -> None:
        ahead.end(0, 1)
        await ahead.rollouts.take(1)
        failing = asyncio.create_task(ahead.rollouts.failed())
        ahead.end(2, 3)
        await breathe()
        assert not failing.done()
        ahead.end(5)  # of step 3, when step 1 is not trained yet
        with pytest.raises(ValueError, match="group 5"):
            await failing
        with pytest.raises(ValueError, match="group 5"):
            await ahead.rollouts.failed()
        await ahead.rollouts.cancel()

    tell(Ahead(2, broken=(5,)), story)


def test_cancelling_cuts_everything_and_leaves_nothing_for_asyncio_to_complain_of(caplog: Any) -> None:
    async def story(ahead: Ahead) -> None:
        ahead.end(0, 1, 2, 4)
        await ahead.rollouts.take(1)
        await breathe()
        await ahead.rollouts.cancel()
        assert ahead.cut == [3, 5] and ahead.began == began(3)

    tell(Ahead(2, broken=(4,), rounds=1), story)
    assert "never retrieved" not in caplog.text


@pytest.mark.parametrize(
    ("signals", "most", "expected"),
    [
        ([None, False], 2, [False, True]),  # the unknown one may be left out as well: both fit
        ([None, False], 1, [False, False]),  # if it is, this one is taken
        ([False, False, False, True, False], 2, [True, True, False, False, True]),  # the last is of the next step
        ([True, None, False, True, False], 2, [False, False, True, False, False]),
        ([False, True], 0, [False, False]),
        ([], 3, []),
    ],
)
def test_only_what_no_outcome_can_bring_back_is_left_out(
    signals: list[bool | None], most: int, expected: list[bool]
) -> None:
    assert surely_left_out(signals, size=B, most=most) == expected
