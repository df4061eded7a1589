"""A pool of slots: runs programs concurrently, and replaces what died.

The pool's queue holds running slots, and None for each slot that is not started yet or was lost: the call that takes a
None starts a slot. So everything starts lazily, and a lost slot or zygote is replaced by the next call that needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

from ramet import InfraError
from ramet_tools_python.config import PythonConfig
from ramet_tools_python.result import PythonResult, Status, read_reply
from ramet_tools_python.zygote import Slot, ZygoteProcess

logger = logging.getLogger(__name__)
GRACE_S = 2.0  # after the slot's own deadline; then it counts as hung
READY_S = 15.0  # for a new slot, or for one that cleans up after a program
ATTEMPTS = 2
LEVELS = {0: "limits and no privileges, but programs can read this user's files, write them and use the network"}


class QueueTimeout(InfraError):
    """No slot became free in time."""


class Sandbox:
    """Belongs to one event loop."""

    def __init__(self, config: PythonConfig) -> None:
        self.config = config
        self._pool: asyncio.Queue[Slot | None] = asyncio.Queue()
        for _ in range(config.slots):
            self._pool.put_nowait(None)
        self._busy: set[Slot] = set()
        self._zygote: ZygoteProcess | None = None
        self._logged_level: int | None = None  # level that was logged
        self._starting = asyncio.Lock()
        self._stopping: set[asyncio.Future[None]] = set()

    async def run(self, code: str) -> PythonResult:
        """Run one program. Raises `InfraError` if our side failed twice."""
        for _ in range(ATTEMPTS):
            result = await self._attempt(code)
            if not result.status.ours:
                return result
            logger.info("python tool: %s: %s", result.status, result.stderr)
        raise InfraError(f"the python tool failed {ATTEMPTS} times, last with {result.status}: {result.stderr}")

    async def close(self) -> None:
        """End everything, running calls too. A later call starts anew."""
        for slot in self._busy:
            slot.hang_up()
        for _ in range(self._pool.qsize()):
            idle = self._pool.get_nowait()
            self._pool.put_nowait(None)
            if idle is not None:
                idle.close()
        if self._zygote is not None:
            self._retire(self._zygote)
        await asyncio.gather(*self._stopping, return_exceptions=True)

    def abandon(self) -> None:
        """Drop everything where the event loop is gone: sockets are closed, and that ends the processes."""
        idle = [self._pool.get_nowait() for _ in range(self._pool.qsize())]
        for slot in [*self._busy, *idle]:
            if slot is not None:
                slot.close()
        if self._zygote is not None:
            self._zygote.control.close()

    async def _attempt(self, code: str) -> PythonResult:
        queued = time.monotonic()
        try:
            async with self._slot() as slot:
                queue_ms = (time.monotonic() - queued) * 1000
                return read_reply(await self._answer(slot, code), queue_ms=queue_ms, level=slot.zygote.level)
        except QueueTimeout as error:
            return PythonResult(status=Status.QUEUE_TIMEOUT, stderr=str(error))
        except (OSError, EOFError, InfraError) as error:
            return PythonResult(status=Status.INFRA_ERROR, stderr=f"{type(error).__name__}: {error}")

    async def _answer(self, slot: Slot, code: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self.config.timeout_s + GRACE_S):
                return await slot.call(code, self.config.timeout_s)
        except TimeoutError as error:
            self._retire(slot.zygote)
            raise InfraError("a slot did not answer; its zygote is replaced") from error

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[Slot]:
        """A running slot for one call. It goes back to the pool only if the call ended well."""
        try:
            async with asyncio.timeout(self.config.queue_timeout_s):
                idle = await self._pool.get()
        except TimeoutError as error:
            raise QueueTimeout("no slot became free in time") from error
        slot = kept = None
        try:
            slot = await self._usable_slot(idle)
            self._busy.add(slot)
            yield slot
            kept = slot
        finally:
            if slot is not None:
                self._busy.discard(slot)
                if kept is None:
                    slot.close()
            self._pool.put_nowait(kept)

    async def _usable_slot(self, idle: Slot | None) -> Slot:
        """The idle slot if it still answers, else a new one."""
        if idle is not None:
            if idle.zygote is self._zygote and idle.zygote.alive and await self._is_ready(idle):
                return idle
            idle.close()
        for _ in range(ATTEMPTS):  # a zygote may have died unnoticed until it is asked for something
            zygote = await self._running_zygote()
            slot = await self._new_slot(zygote)
            if slot is not None:
                return slot
            self._retire(zygote)
        raise InfraError("a new slot did not come up")

    async def _new_slot(self, zygote: ZygoteProcess) -> Slot | None:
        try:
            slot = zygote.new_slot()
        except OSError:
            return None
        if await self._is_ready(slot):
            return slot
        slot.close()
        return None

    async def _is_ready(self, slot: Slot) -> bool:
        try:
            async with asyncio.timeout(READY_S):
                await slot.ready()
        except (OSError, EOFError, TimeoutError):
            return False
        except BaseException:
            slot.close()
            raise
        return True

    async def _running_zygote(self) -> ZygoteProcess:
        async with self._starting:
            if self._zygote is not None and not self._zygote.alive:
                self._retire(self._zygote)
            if self._zygote is None:
                self._zygote = await ZygoteProcess.start(self.config)
                self._log_level(self._zygote.level)
            return self._zygote

    def _log_level(self, level: int) -> None:
        if level != self._logged_level:
            logger.info("python tool: isolation level %d (%s)", level, LEVELS[level])
            self._logged_level = level

    def _retire(self, zygote: ZygoteProcess) -> None:
        """End this zygote in the background, unless that was begun already. The next call starts another."""
        if self._zygote is not zygote:
            return
        self._zygote = None
        for slot in self._busy:
            if slot.zygote is zygote:
                slot.hang_up()
        stopping = asyncio.get_running_loop().run_in_executor(None, zygote.stop)
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopped)

    def _stopped(self, stopping: asyncio.Future[None]) -> None:
        self._stopping.discard(stopping)
        error = None if stopping.cancelled() else stopping.exception()
        if error is not None:
            logger.warning("python tool: cleaning up failed: %s", error)
