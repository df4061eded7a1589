"""Deadlines of many that run at once: one timer of the event loop serves them all.

Nearly all of them end in time, so a timer for each would be made, ordered among the others and cancelled for nothing.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class DeadlineQueue(Generic[T]):
    """Calls `expire` for whatever was added and, after so many seconds or at `latest`, has not been discarded.

    All have equally long, so their deadlines come in the order in which they were added.
    """

    def __init__(self, seconds: float, expire: Callable[[T], object], *, latest: float = math.inf) -> None:
        self.seconds = seconds
        self._expire = expire
        self._latest = latest
        self._deadlines: dict[T, float] = {}  # in rising order
        self._timer: asyncio.TimerHandle | None = None

    def add(self, one: T) -> float:
        """Its deadline, in the event loop's time."""
        loop = asyncio.get_running_loop()
        at = self._deadlines[one] = min(loop.time() + self.seconds, self._latest)
        if self._timer is None:
            self._timer = loop.call_at(at, self._on_timer)
        return at

    def discard(self, one: T) -> None:
        """It has ended. The timer goes with the last one; before that it may ring for one that is gone."""
        self._deadlines.pop(one, None)
        if not self._deadlines and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timer(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        while self._deadlines:
            one, at = next(iter(self._deadlines.items()))
            if at > loop.time():
                self._timer = loop.call_at(at, self._on_timer)
                return
            del self._deadlines[one]
            self._expire(one)


class TaskLimit:
    """`asyncio.timeout` with a queue's time, for the current task: `with TaskLimit(queue)` may raise `TimeoutError`.

    `ends_at`: the deadline, in the event loop's time. `expired`: the task was cancelled for it.
    """

    __slots__ = ("_cancelling", "_queue", "_task", "ends_at", "expired")

    def __init__(self, queue: DeadlineQueue[TaskLimit]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._queue = queue
        self._task = task
        self._cancelling = task.cancelling()
        self.expired = False
        self.ends_at = queue.add(self)

    def expire(self) -> None:
        """Cancel the task, once, at its next wait if it is the one that runs now."""
        if not self.expired:
            self.expired = True
            self._task.cancel()

    def __enter__(self) -> TaskLimit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue.discard(self)
        if self.expired and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
