"""Requests and updates keep their order. Needs no vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ramet.engines.vllm.turns import Turns


class Play:
    """Requests and updates that note when they begin and end, and end when they are told to."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.log: list[str] = []
        self.given_up: set[str] = set()
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
        async with self.turns.request(lambda: name in self.given_up):
            self.log.append(name)
            if name not in self.given_up:
                await self._over[name].wait()

    async def _update(self, name: str, in_flight: bool) -> None:
        async with self.turns.update(in_flight=in_flight):
            self.log.append(name)
            await self._over[name].wait()


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_an_update_waits_for_the_requests_before_it_and_those_behind_it_wait() -> None:
    async def use(play: Play) -> None:
        await play.request("a")
        await play.request("b")
        await play.update("update")
        await play.request("c")
        await play.end("a")
        assert play.log == ["a", "b"]
        await play.end("b")
        assert play.log == ["a", "b", "update"]
        await play.end("update")
        assert play.log == ["a", "b", "update", "c"]
        await play.end("c")
        await play.finish()

    asyncio.run(use(Play()))


def test_a_request_between_two_updates_is_served_between_them() -> None:
    async def use(play: Play) -> None:
        await play.update("first")
        await play.request("between")
        await play.update("second")
        await play.request("behind")
        await play.end("first")
        assert play.log == ["first", "between"]
        await play.end("between", "second", "behind")
        assert play.log == ["first", "between", "second", "behind"]
        await play.finish()

    asyncio.run(use(Play()))


def test_an_update_in_flight_waits_for_earlier_updates_only() -> None:
    async def use(play: Play) -> None:
        await play.request("a")
        await play.update("flight", in_flight=True)
        assert play.log == ["a", "flight"]
        await play.end("flight")
        await play.update("waits")
        await play.update("behind", in_flight=True)
        assert play.log == ["a", "flight"]
        await play.end("a")
        assert play.log[2:] == ["waits"]
        await play.end("waits", "behind")
        assert play.log[2:] == ["waits", "behind"]
        await play.finish()

    asyncio.run(use(Play()))


def test_a_request_that_is_given_up_does_not_wait_for_its_turn() -> None:
    async def use(play: Play) -> None:
        await play.update("update")
        await play.request("given up")
        play.given_up.add("given up")
        play.turns.look()
        await _settle()
        assert play.log == ["update", "given up"]
        await play.end("update")
        await play.finish()

    asyncio.run(use(Play()))
