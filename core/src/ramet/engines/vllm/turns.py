"""Whose turn it is: requests run between weight updates, in the order in which both came.

Used on one loop. An update waits for the requests before it, and the requests behind it wait for it. An update in
flight waits for no request, only for the updates before it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Turns:
    """Every update begins an epoch; a request belongs to the one that the updates before it lead to."""

    def __init__(self) -> None:
        self._came = 0  # updates
        self._over = 0  # of those
        self._requests: Counter[int] = Counter()  # by epoch
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []

    @asynccontextmanager
    async def request(self, given_up: Callable[[], bool]) -> AsyncIterator[None]:
        """Entered when its epoch has begun, or when it is given up (`look` must be called then)."""
        epoch = self._came
        self._requests[epoch] += 1
        try:
            await self._until(lambda: self._over >= epoch or given_up())
            yield
        finally:
            self._requests[epoch] -= 1
            self.look()

    @asynccontextmanager
    async def update(self, *, in_flight: bool) -> AsyncIterator[None]:
        number = self._came
        self._came += 1
        try:
            await self._until(lambda: self._over == number and (in_flight or not self._left(number)))
            yield
        finally:
            self._over += 1
            self.look()

    def look(self) -> None:
        """See whose turn it is now."""
        for ready, future in self._waiting:
            if ready() and not future.done():
                future.set_result(None)

    def _left(self, epoch: int) -> bool:
        """Requests of this epoch or an earlier one run still."""
        return any(count for one, count in self._requests.items() if one <= epoch)

    async def _until(self, ready: Callable[[], bool]) -> None:
        if ready():
            return
        entry = ready, asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        try:
            await entry[1]
        finally:
            self._waiting.remove(entry)
