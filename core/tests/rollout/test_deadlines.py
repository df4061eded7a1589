"""One timer serves many deadlines: each comes in its order and at its time, and what ended before is left alone."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any

import pytest

from ramet.rollout.deadlines import DeadlineQueue, TaskLimit


class Selector(selectors.DefaultSelector):
    """Skips the time that the loop would wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now += max(0.0, timeout)
        return ready


class Loop(asyncio.SelectorEventLoop):
    """Its time is what it would have waited: a test neither waits nor depends on how busy the machine is."""

    def __init__(self) -> None:
        self.skipping = Selector()
        super().__init__(self.skipping)

    def time(self) -> float:
        return self.skipping.now


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(work)


def timers() -> int:
    """Of the running loop, those cancelled left out."""
    loop = asyncio.get_running_loop()
    return sum(not timer.cancelled() for timer in loop._scheduled)  # type: ignore[attr-defined]


def test_those_that_did_not_end_in_time_expire_in_their_order() -> None:
    async def main() -> None:
        expired = list[str]()
        queue = DeadlineQueue(50.0, expired.append)
        for name in "abcd":
            queue.add(name)
            await asyncio.sleep(5.0)
        assert timers() == 1
        queue.discard("a")  # whose timer it was
        queue.discard("c")
        await asyncio.sleep(34.0)
        assert expired == []
        await asyncio.sleep(2.0)
        assert expired == ["b"]
        await asyncio.sleep(20.0)
        assert expired == ["b", "d"]
        assert timers() == 0

    run(main())


def test_no_timer_is_left_when_all_have_ended_and_a_later_loop_gets_its_own() -> None:
    expired = list[str]()
    queue = DeadlineQueue(0.01, expired.append)

    async def one(name: str, *, ends: bool) -> None:
        queue.add(name)
        if ends:
            queue.discard(name)
            queue.discard(name)  # and again: nothing happens
            assert timers() == 0
        await asyncio.sleep(0.03)

    run(one("in time", ends=True))
    run(one("late", ends=False))
    assert expired == ["late"]


def test_no_deadline_is_later_than_the_latest() -> None:
    async def main() -> None:
        now = asyncio.get_running_loop().time()
        queue = DeadlineQueue[str](60.0, lambda _: None, latest=now + 1.0)
        assert queue.add("x") == now + 1.0
        queue.discard("x")

    run(main())


def test_a_task_over_its_limit_is_timed_out_and_goes_on_uncancelled() -> None:
    async def main() -> None:
        queue = DeadlineQueue(0.01, TaskLimit.expire)
        limit = TaskLimit(queue)
        with pytest.raises(TimeoutError), limit:
            await asyncio.sleep(5)
        task = asyncio.current_task()
        assert task is not None and limit.expired and task.cancelling() == 0
        with TaskLimit(queue) as second:
            await asyncio.sleep(0)
        assert not second.expired and timers() == 0

    run(main())


def test_a_cancellation_from_outside_stays_one() -> None:
    async def limited(queue: DeadlineQueue[TaskLimit]) -> None:
        with TaskLimit(queue):
            await asyncio.sleep(5)

    async def main() -> None:
        task = asyncio.create_task(limited(DeadlineQueue(60.0, TaskLimit.expire)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert timers() == 0

    run(main())


def test_what_catches_its_time_out_ends_as_it_wants() -> None:
    async def main() -> None:
        with TaskLimit(DeadlineQueue(0.01, TaskLimit.expire)) as limit:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                result = "kept"
        task = asyncio.current_task()
        assert task is not None and (result, limit.expired, task.cancelling()) == ("kept", True, 0)

    run(main())
