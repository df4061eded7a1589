"""Requests and updates keep their order. Needs no vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ramet.engines.vllm.update_barrier import UpdateBarrier


class Script:
    """Requests and updates that note when they begin and end, and end when they are told to."""

    def __init__(self) -> None:
        self.barrier = UpdateBarrier()
        self.log: list[str] = []
        self.aborted: set[str] = set()
        self._over: dict[str, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def request(self, name: str) -> None:
        await self._come(name, lambda: self._request(name))

    async def update(self, name: str, *, in_flight: bool = False) -> None:
        await self._come(name, lambda: self._update(name, in_flight))

    async def end(self, *names: str) -> None:
        for name in names:
            self._over[name].set()
        await _settle()

    async def finish(self) -> None:
        await asyncio.wait_for(asyncio.gather(*self._tasks), timeout=5)

    async def _come(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._over[name] = asyncio.Event()
        self._tasks.append(asyncio.ensure_future(work()))  # type: ignore[arg-type]
        await _settle()

    async def _request(self, name: str) -> None:
        async with self.barrier.request(lambda: name in self.aborted):
            self.log.append(name)
            if name not in self.aborted:
                await self._over[name].wait()

    async def _update(self, name: str, in_flight: bool) -> None:
        async with self.barrier.update(in_flight=in_flight):
            self.log.append(name)
            await self._over[name].wait()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_an_update_waits_for_the_requests_before_it_and_those_after_it_wait() -> None:
    async def use(script: Script) -> None:
        await script.request("a")
        await script.request("b")
        await script.update("update")
        await script.request("c")
        await script.end("a")
        assert script.log == ["a", "b"]
        await script.end("b")
        assert script.log == ["a", "b", "update"]
        await script.end("update")
        assert script.log == ["a", "b", "update", "c"]
        await script.end("c")
        await script.finish()

    asyncio.run(use(Script()))


def test_a_request_between_two_updates_is_served_between_them() -> None:
    async def use(script: Script) -> None:
        await script.update("first")
        await script.request("between")
        await script.update("second")
        await script.request("after")
        await script.end("first")
        assert script.log == ["first", "between"]
        await script.end("between", "second", "after")
        assert script.log == ["first", "between", "second", "after"]
        await script.finish()

    asyncio.run(use(Script()))


def test_an_update_in_flight_waits_for_earlier_updates_only() -> None:
    async def use(script: Script) -> None:
        await script.request("a")
        await script.update("flight", in_flight=True)
        assert script.log == ["a", "flight"]
        await script.end("flight")
        await script.update("waits")
        await script.update("after", in_flight=True)
        assert script.log == ["a", "flight"]
        await script.end("a")
        assert script.log[2:] == ["waits"]
        await script.end("waits", "after")
        assert script.log[2:] == ["waits", "after"]
        await script.finish()

    asyncio.run(use(Script()))


def test_a_request_that_is_aborted_does_not_wait_for_its_turn() -> None:
    async def use(script: Script) -> None:
        await script.update("update")
        await script.request("aborted")
        script.aborted.add("aborted")
        script.barrier.check()
        await _settle()
        assert script.log == ["update", "aborted"]
        await script.end("update")
        await script.finish()

    asyncio.run(use(Script()))
