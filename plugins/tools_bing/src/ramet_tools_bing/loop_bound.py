"""Things that belong to one process and one event loop: connections, tasks, child processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    async def aclose(self) -> None: ...


T = TypeVar("T", bound=Closable)


class LoopBound(Generic[T]):
    """One object for each event loop that asks, the newest one kept.

    What an earlier loop or a parent process had is dropped without closing it: its loop is gone.
    """

    def __init__(self, build: Callable[[], T]) -> None:
        self._build = build
        self._built: T | None = None
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None

    def get(self) -> T:
        owner = (os.getpid(), asyncio.get_running_loop())
        if self._built is None or owner != self._owner:
            self._built, self._owner = self._build(), owner
        return self._built

    async def aclose(self) -> None:
        built, self._built = self._built, None
        if built is not None and self._owner == (os.getpid(), asyncio.get_running_loop()):
            await built.aclose()
