"""Objects of one process and one event loop: connections, tasks, child processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """A value of `PerLoop`."""

    async def aclose(self) -> None: ...


T = TypeVar("T", bound=Closable)


class PerLoop(Generic[T]):
    """One object for the event loop that asks, built at its first use. Only the newest one is kept.

    What an earlier loop or a parent process had cannot be closed there any more: it is handed to `abandon`, if given.
    """

    def __init__(self, build: Callable[[], T], abandon: Callable[[T], None] = lambda _: None) -> None:
        self._build, self._abandon = build, abandon
        self._built: T | None = None
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None

    def get(self) -> T:
        """The object of the running event loop."""
        owner = (os.getpid(), asyncio.get_running_loop())
        if self._built is not None and owner != self._owner:
            self._abandon(self._built)
            self._built = None
        if self._built is None:
            self._built, self._owner = self._build(), owner
        return self._built

    async def aclose(self) -> None:
        """Close the object, if there is one. The next `get` builds another one."""
        built, self._built = self._built, None
        if built is None:
            return
        if self._owner == (os.getpid(), asyncio.get_running_loop()):
            await built.aclose()
        else:
            self._abandon(built)
