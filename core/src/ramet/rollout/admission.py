"""How many rollouts are under way at once. A group enters as a whole, in order, and leaves rollout by rollout."""

from __future__ import annotations

import asyncio
from collections import deque


class Admission:
    """First come, first served: a large group is not overtaken by smaller ones behind it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, n: int) -> None:
        """Wait until n more rollouts fit. `n` must not exceed the capacity."""
        if not self._queue and n <= self.free:
            self.free -= n
            return
        turn = asyncio.get_running_loop().create_future()
        self._queue.append((n, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(n)  # admitted and cancelled in the same moment
            else:
                self._queue = deque(entry for entry in self._queue if entry[1] is not turn)
            raise

    def leave(self, n: int) -> None:
        self.free += n
        while self._queue and self._queue[0][0] <= self.free:
            wanted, turn = self._queue.popleft()
            if turn.cancelled():
                continue
            self.free -= wanted
            turn.set_result(None)
