"""The choice of the rollout worker that runs the next group."""

from __future__ import annotations

import asyncio
from collections import deque

from ramet.cluster.ray.worker import RayWorker


class Dispatcher:
    """Gives each group to the worker with the fewest rollouts, in the order in which groups asked for one.

    A worker is given groups until its `rollout.max_concurrent` is reached or passed by the last of them. That group
    waits in the worker, and starts rollout by rollout while others end. Groups for which no worker has room wait here.
    """

    def __init__(self, max_concurrent: int) -> None:
        self._max_concurrent = max_concurrent
        self._load: dict[RayWorker, int] = {}  # rollouts on each worker
        self._waiting: deque[tuple[int, asyncio.Future[RayWorker]]] = deque()

    @property
    def workers(self) -> list[RayWorker]:
        return list(self._load)

    def add(self, worker: RayWorker) -> None:
        self._load[worker] = 0
        self._assign()

    def remove(self, worker: RayWorker) -> None:
        """Remove a worker; one that was removed before is passed over."""
        self._load.pop(worker, None)

    async def acquire(self, size: int, *, first: bool = False) -> RayWorker:
        """Wait for a worker with room, and count `size` rollouts as on it. `first`: before all that wait already."""
        turn: asyncio.Future[RayWorker] = asyncio.get_running_loop().create_future()
        (self._waiting.appendleft if first else self._waiting.append)((size, turn))
        self._assign()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release(turn.result(), size)
            raise

    def release(self, worker: RayWorker, size: int) -> None:
        if worker in self._load:
            self._load[worker] -= size
        self._assign()

    def _assign(self) -> None:
        while self._waiting:
            size, turn = self._waiting[0]
            if not turn.done():
                worker = min(self._load, key=self._load.__getitem__, default=None)
                if worker is None or self._load[worker] >= self._max_concurrent:
                    return
                self._load[worker] += size
                turn.set_result(worker)
            self._waiting.popleft()
