"""An asyncio loop in a thread of its own, for a library that wants one, and calls into it from other loops.

The engine goes on streaming while the caller's loop is busy, and may be used from one loop after another.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)


class Bridge:
    """The thread starts with the object and ends with `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin this over there, in the order of these calls. To cancel the future is to cancel the work."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """Cancel what is left and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            self._loop.close()


def post(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call this on a loop of another thread."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:  # it was closed: nobody waits any more
        logger.debug("dropped an event of a closed loop")
