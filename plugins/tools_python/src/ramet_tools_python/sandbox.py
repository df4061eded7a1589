"""A pool of slots: runs programs concurrently, each from a fresh start, and replaces dead slots.

The pool's queue has running slots, and None for each slot that is not started yet or was lost: the call that takes a
None starts a slot. So everything starts lazily, and a lost slot or zygote is replaced by the next call that needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from ramet import InfraError
from ramet_tools_python.config import PythonConfig
from ramet_tools_python.isolation import Isolation
from ramet_tools_python.result import PythonResult, Status, read_reply
from ramet_tools_python.slots import ATTEMPTS, Slots, logger
from ramet_tools_python.zygote import Slot


class QueueTimeout(InfraError):
    """Error: no slot became free in time."""


class Sandbox:
    """A sandbox that belongs to one event loop."""

    def __init__(self, config: PythonConfig) -> None:
        self.config = config
        self.slots = Slots(config)
        self._pool: asyncio.Queue[Slot | None] = asyncio.Queue()
        for _ in range(config.slots):
            self._pool.put_nowait(None)

    async def start(self) -> Isolation:
        """Start what needs most time, so that the first program need not wait. Raises as `run`."""
        return (await self.slots.zygote()).isolation

    async def run(self, code: str) -> PythonResult:
        """Run one program. Raises `InfraError` if our side failed twice, `ConfigError` if the isolation is too low."""
        for _ in range(ATTEMPTS):
            result = await self._attempt(code)
            if not result.status.ours:
                return result
            logger.info("python tool: %s: %s", result.status, result.stderr)
        raise InfraError(f"the python tool failed {ATTEMPTS} times, last with {result.status}: {result.stderr}")

    async def aclose(self) -> None:
        """End everything, running calls too. A later call starts a new worker."""
        for idle in self._take_idle():
            idle.close()
        await self.slots.close()

    def abandon(self) -> None:
        """Drop everything where the event loop is gone."""
        for idle in self._take_idle():
            idle.close()
        self.slots.abandon()

    def _take_idle(self) -> list[Slot]:
        idle = [self._pool.get_nowait() for _ in range(self._pool.qsize())]
        for _ in idle:
            self._pool.put_nowait(None)
        return [slot for slot in idle if slot is not None]

    async def _attempt(self, code: str) -> PythonResult:
        queued = time.monotonic()
        try:
            async with self._slot() as slot:
                queue_ms = (time.monotonic() - queued) * 1000
                reply = await self._answer(slot, code)
                return read_reply(reply, queue_ms=queue_ms, level=slot.zygote.isolation.level)
        except QueueTimeout as error:
            return PythonResult(status=Status.QUEUE_TIMEOUT, stderr=str(error))
        except (OSError, EOFError, InfraError) as error:
            return PythonResult(status=Status.INFRA_ERROR, stderr=f"{type(error).__name__}: {error}")

    async def _answer(self, slot: Slot, code: str) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self.slots.answer_s):
                reply = await slot.ask({"code": code})
        except TimeoutError as error:
            self.slots.retire(slot.zygote)
            raise InfraError("a slot did not answer; its zygote is replaced") from error
        if reply["status"] == Status.SETUP_ERROR:
            raise InfraError(f"a slot could not prepare a program: {reply['stderr']}")
        return reply

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
            self.slots.busy.add(slot)
            yield slot
            kept = slot
        finally:
            if slot is not None:
                self.slots.busy.discard(slot)
                if kept is None:
                    slot.close()
            self._pool.put_nowait(kept)

    async def _usable_slot(self, idle: Slot | None) -> Slot:
        """The idle slot if it still answers, otherwise a new one."""
        if idle is not None:
            if await self.slots.is_usable(idle):
                return idle
            idle.close()
        return await self.slots.new()
