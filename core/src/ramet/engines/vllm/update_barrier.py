"""Requests run between weight updates, in the order in which both came. Used on one loop.

An update waits for the requests before it, and the requests after it wait for it. An update in flight waits for no
request, only for the updates before it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class UpdateBarrier:
    """Every update begins an epoch; a request belongs to the one that the updates before it lead to."""

    def __init__(self) -> None:
        self._asked = 0  # updates
        self._done = 0  # of those
        self._requests: Counter[int] = Counter()  # by epoch
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    @asynccontextmanager
    async def request(self, aborted: Callable[[], bool]) -> AsyncIterator[None]:
        """Entered when its epoch has begun, or when it is aborted (`check` must be called then)."""
        epoch = self._asked
        self._requests[epoch] += 1
        try:
            await self._until(lambda: self._done >= epoch or aborted())
            yield
        finally:
            self._requests[epoch] -= 1
            self.check()

    @asynccontextmanager
    async def update(self, *, in_flight: bool) -> AsyncIterator[None]:
        """Entered when the updates before it are done and, unless it is in flight, the requests before it."""
        number = self._asked
        self._asked += 1
        try:
            await self._until(lambda: self._done == number and (in_flight or not self._are_left(number)))
            yield
        finally:
            self._done += 1
            self.check()

    def check(self) -> None:
        """Resume the requests that need not wait any more."""
        for ready, future in self._waiting:
            if ready() and not future.done():
                future.set_result(None)

    def _are_left(self, epoch: int) -> bool:
        """Requests of this epoch or an earlier one are still running."""
        return any(count for earlier, count in self._requests.items() if earlier <= epoch)

    async def _until(self, ready: Callable[[], bool]) -> None:
        if ready():
            return
        entry = ready, asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        try:
            await entry[1]
        finally:
            self._waiting.remove(entry)
