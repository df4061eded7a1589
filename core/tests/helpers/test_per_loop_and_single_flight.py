"""What belongs to an event loop, and equal calls that share an execution."""

from __future__ import annotations

import asyncio
import os

import pytest

from ramet.helpers import PerLoop, SingleFlight


class Thing:
    def __init__(self) -> None:
        self.said: list[str] = []

    async def aclose(self) -> None:
        self.said.append("closed")

    def abandon(self) -> None:
        self.said.append("abandoned")


def test_each_event_loop_has_one_object_and_only_its_own_is_closed() -> None:
    async def twice() -> tuple[Thing, Thing]:
        return things.get(), things.get()

    async def close_another() -> Thing:
        last = things.get()
        await things.aclose()
        await things.aclose()
        assert things.get() is not last
        return last

    things = PerLoop(Thing, Thing.abandon)
    first, same = asyncio.run(twice())
    assert first is same
    second = asyncio.run(close_another())
    assert (first.said, second.said) == (["abandoned"], ["closed"])
    asyncio.run(things.aclose())  # what the second loop built last
    asyncio.run(things.aclose())


def test_a_forked_process_builds_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def across() -> list[str]:
        parents = things.get()
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert things.get() is not parents
        return parents.said

    things = PerLoop(Thing, Thing.abandon)
    assert asyncio.run(across()) == ["abandoned"]


def test_equal_calls_share_an_execution_that_ends_when_all_are_gone() -> None:
    async def steps() -> None:
        calls, ended = 0, asyncio.Event()

        async def work() -> int:
            nonlocal calls
            calls += 1
            try:
                await asyncio.sleep(0.01 if calls == 1 else 60)
            except asyncio.CancelledError:
                ended.set()
                raise
            return calls

        flights = SingleFlight[int]()
        assert await asyncio.gather(*(flights.run("k", work) for _ in range(3))) == [1, 1, 1]
        assert "k" not in flights
        waiting = [asyncio.create_task(flights.run("k", work)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0.01)
        assert "k" in flights and not ended.is_set()
        waiting[1].cancel()
        await asyncio.wait_for(ended.wait(), 5)
        assert "k" not in flights and calls == 2

    asyncio.run(steps())
