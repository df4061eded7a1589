"""Source of running slots: a zygote, started when it is first needed and replaced when it died."""

from __future__ import annotations

import asyncio
import logging

from ramet import InfraError
from ramet_tools_python.config import PythonConfig
from ramet_tools_python.zygote import WALL_FACTOR, Slot, ZygoteProcess

logger = logging.getLogger("ramet.tools.python")  # among Ramet's own, so that its lines are shown at the start
GRACE_S = 2.0  # after the slot's own last deadline; then it counts as hung
READY_S = 15.0  # for a new slot, or for one that cleans up after a program
ATTEMPTS = 2


class Slots:
    """Slots of one event loop. A caller that waits for a slot's answer puts it into `busy` for so long."""

    def __init__(self, config: PythonConfig) -> None:
        self.config = config
        self.busy: set[Slot] = set()
        self._zygote: ZygoteProcess | None = None
        self._logged = ""  # the isolation that was logged
        self._starting = asyncio.Lock()
        self._stopping: set[asyncio.Future[None]] = set()

    @property
    def answer_s(self) -> float:
        """Seconds without an answer after which a slot counts as hung."""
        return self.config.timeout_s * WALL_FACTOR + GRACE_S

    async def new(self) -> Slot:
        """A slot that is ready. Raises `InfraError`, and `ConfigError` if its isolation is too low."""
        for _ in range(ATTEMPTS):  # a zygote may have died unnoticed until it is asked for something
            zygote = await self.zygote()
            slot = await self._new(zygote)
            if slot is not None:
                return slot
            self.retire(zygote)
        raise InfraError("a new slot did not come up")

    async def is_usable(self, slot: Slot, ready_s: float | None = None) -> bool:
        """Whether one that has answered before is ready again; waits for it for so long, None: as for a new one."""
        return slot.zygote is self._zygote and slot.zygote.alive and await self._is_ready(slot, ready_s)

    async def zygote(self) -> ZygoteProcess:
        async with self._starting:
            if self._zygote is not None and not self._zygote.alive:
                self.retire(self._zygote)
            if self._zygote is None:
                self._zygote = await self._start()
            return self._zygote

    def retire(self, zygote: ZygoteProcess) -> None:
        """End this zygote in the background, unless that was begun already. The next call starts another."""
        if self._zygote is not zygote:
            return
        self._zygote = None
        for slot in self.busy:
            if slot.zygote is zygote:
                slot.hang_up()
        self._stop(zygote)

    async def close(self) -> None:
        """End everything, running calls too."""
        for slot in self.busy:
            slot.hang_up()
        if self._zygote is not None:
            self.retire(self._zygote)
        await asyncio.gather(*self._stopping, return_exceptions=True)

    def abandon(self) -> None:
        """Drop everything where the event loop is gone: sockets are closed, and that ends the processes."""
        for slot in self.busy:
            slot.close()
        if self._zygote is not None:
            self._zygote.control.close()

    async def _start(self) -> ZygoteProcess:
        zygote = await ZygoteProcess.start(self.config)
        try:
            zygote.isolation.check(self.config.isolation, self.config.require)
        except BaseException:
            self._stop(zygote)
            raise
        if zygote.isolation.text != self._logged:
            logger.info("python tool: %s", zygote.isolation.text)
            self._logged = zygote.isolation.text
        return zygote

    async def _new(self, zygote: ZygoteProcess) -> Slot | None:
        try:
            slot = zygote.new_slot()
        except OSError:
            return None
        if await self._is_ready(slot):
            return slot
        slot.close()
        return None

    async def _is_ready(self, slot: Slot, ready_s: float | None = None) -> bool:
        try:
            async with asyncio.timeout(READY_S if ready_s is None else ready_s):
                await slot.ready()
        except (OSError, EOFError, TimeoutError):
            return False
        except BaseException:
            slot.close()
            raise
        return True

    def _stop(self, zygote: ZygoteProcess) -> None:
        stopping = asyncio.get_running_loop().run_in_executor(None, zygote.stop)
        self._stopping.add(stopping)
        stopping.add_done_callback(self._stopped)

    def _stopped(self, stopping: asyncio.Future[None]) -> None:
        self._stopping.discard(stopping)
        error = None if stopping.cancelled() else stopping.exception()
        if error is not None:
            logger.warning("python tool: cleaning up failed: %s", error)
