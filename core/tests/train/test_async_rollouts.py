"""Rollouts of later steps run ahead of the update, and never further than allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ramet.train.step_rollouts import AsyncRollouts, PlayedStep


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
def test_so_many_steps_run_ahead_and_none_behind_the_last(staleness: int) -> None:
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
