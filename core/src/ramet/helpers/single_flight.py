"""Equal calls at one time share one execution."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Execution(Generic[T]):
    task: asyncio.Future[T]
    waiters: int = 0


class SingleFlight(Generic[T]):
    """Executions of one event loop, by key.

    An execution belongs to no caller: it ends early only when all of them are gone.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Execution[T]] = {}

    def __contains__(self, key: Hashable) -> bool:
        """Whether the next call with this key joins an execution."""
        return key in self._flights

    async def run(self, key: Hashable, work: Callable[[], Awaitable[T]]) -> T:
        """Return what `work` returns, called by this caller or by one that came before with the same key."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Execution(asyncio.ensure_future(work()))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if flight.task.done() or not flight.waiters:
                flight.task.cancel()
                if self._flights.get(key) is flight:
                    del self._flights[key]

    async def aclose(self) -> None:
        """End all executions; their callers are cancelled."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
