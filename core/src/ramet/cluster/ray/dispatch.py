"""Who plays the next group: the worker with the fewest rollouts under way, in the order in which groups were asked for.

A worker is given groups until its `rollout.max_concurrent` is reached or passed by the last of them, so that a group
waits there, and enters rollout by rollout while others leave. What no worker has room for stays here, where it goes to
whoever is free first.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ramet.cluster.ray.worker import RayWorker


class Dispatch:
    """Knows the workers that can play, and how many rollouts each has."""

    def __init__(self, max_concurrent: int) -> None:
        self._most = max_concurrent
        self._load: dict[RayWorker, int] = {}
        self._waiting: deque[tuple[int, asyncio.Future[RayWorker]]] = deque()

    @property
    def workers(self) -> list[RayWorker]:
        return list(self._load)

    def join(self, worker: RayWorker) -> None:
        self._load[worker] = 0
        self._serve()

    def leave(self, worker: RayWorker) -> bool:
        """False: it had left already."""
        return self._load.pop(worker, None) is not None

    async def take(self, size: int, *, first: bool = False) -> RayWorker:
        """Wait for a worker and count `size` rollouts as its own. `first`: before all who wait."""
        turn: asyncio.Future[RayWorker] = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if first else self._waiting.append)((size, turn))
        self._serve()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(turn.result(), size)
            raise

    def give_back(self, worker: RayWorker, size: int) -> None:
        if worker in self._load:
            self._load[worker] -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                worker = min(self._load, key=self._load.__getitem__, default=None)
                if worker is None or self._load[worker] >= self._most:
                    return
                self._load[worker] += size
                turn.set_result(worker)
            self._waiting.popleft()
