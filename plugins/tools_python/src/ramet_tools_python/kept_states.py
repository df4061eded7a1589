"""States: the variables that programs of one rollout leave to the next, and copies of them for forks.

A state lives in one slot, as a stopped process (`inside.slot`). States are spread over the slots; programs of one slot
run one after the other. A lost state (with its slot or the zygote) is an infrastructure failure only of the rollouts
that had one there.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from typing import Any

from ramet import InfraError
from ramet_tools_python.config import PythonConfig
from ramet_tools_python.inside.wire import PATIENCE_S
from ramet_tools_python.isolation import Isolation
from ramet_tools_python.result import PythonResult, Status, read_reply
from ramet_tools_python.slots import Slots
from ramet_tools_python.zygote import Slot

COPY_S = 2 * PATIENCE_S  # before a program: its process is copied or, if it cannot be, another one gets ready
CLEAN_S = 60.0  # after a program that made very many files: a slot that is given up takes all its states with it


@dataclass(slots=True, eq=False)
class _Host:
    """One place for states; its slot is started by the first of them."""

    states: int = 0
    slot: Slot | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True, eq=False)
class KeptState:
    """The state of one rollout. `slot` None: nothing has run in it, so it is still empty."""

    host: _Host
    id: int
    slot: Slot | None = None
    closed: bool = False

    def check(self) -> None:
        """Raise `RuntimeError` if it is closed: a program would find none of its variables."""
        if self.closed:
            raise RuntimeError("this state is closed: nothing can be run in it or forked from it; open another")


class KeptStates:
    """Kept states of one event loop."""

    def __init__(self, config: PythonConfig) -> None:
        self.config = config
        self.slots = Slots(config)
        self._hosts = [_Host() for _ in range(config.slots)]
        self._ids = itertools.count(1)
        self._running: set[asyncio.Task[Any]] = set()

    async def start(self) -> Isolation:
        return (await self.slots.zygote()).isolation

    async def open(self) -> KeptState:
        host = min(self._hosts, key=lambda candidate: candidate.states)
        return self._new(host)

    async def run(self, state: KeptState, code: str) -> PythonResult:
        """Run a program with the variables of the state. Raises `InfraError`, `ConfigError` as `Sandbox.run`.

        A caller that is cancelled does not end the program, since its changes of the state must not stop half-way.
        """
        state.check()
        queued = time.monotonic()
        asked = asyncio.create_task(self._ask(state, {"code": code, "state": state.id}))
        reply, level = await self._undisturbed(asked)
        waited_ms = (time.monotonic() - queued) * 1000 - reply.get("wall_ms", 0.0)
        result = read_reply(reply, queue_ms=max(0.0, waited_ms), level=level)
        if result.status is Status.SETUP_ERROR:
            raise InfraError(f"a slot could not prepare a program: {result.stderr}")
        return result

    async def fork(self, state: KeptState) -> KeptState:
        """An independent copy of it as it is."""
        state.check()
        copy = self._new(state.host)
        if state.slot is not None:
            copy.slot = state.slot
            forked = asyncio.create_task(self._ask(state, {"fork": state.id, "to": copy.id}))
            try:
                await self._undisturbed(forked)
            except asyncio.CancelledError:  # otherwise a state that is made meanwhile stays open
                self._keep_running(asyncio.create_task(self._close_forked(forked, copy)))
                raise
            except BaseException:
                copy.host.states -= 1
                raise
        return copy

    async def _close_forked(self, forked: asyncio.Task[Any], copy: KeptState) -> None:
        await asyncio.wait([forked])
        await self.close_state(copy)

    async def close_state(self, state: KeptState) -> None:
        """Drop the state, however many calls wait for its slot: it would stand there until the slot ends."""
        if state.closed:
            return
        state.closed = True
        state.host.states -= 1
        if state.slot is not None and state.slot is state.host.slot:
            await self._undisturbed(asyncio.create_task(self._ask(state, {"drop": state.id}, patient=True)))

    async def aclose(self) -> None:
        """End everything, running calls too; all states are lost."""
        for host in self._hosts:
            self._lose(host)
        await self.slots.close()
        await asyncio.gather(*self._running, return_exceptions=True)

    def abandon(self) -> None:
        """Drop everything where the event loop is gone."""
        for host in self._hosts:
            self._lose(host)
        self.slots.abandon()

    def _new(self, host: _Host) -> KeptState:
        host.states += 1
        return KeptState(host, next(self._ids))

    async def _undisturbed(self, task: asyncio.Task[Any]) -> Any:
        self._keep_running(task)
        return await asyncio.shield(task)

    def _keep_running(self, task: asyncio.Task[Any]) -> None:
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # a waiting caller got the error; a cancelled caller does not want to know

    async def _ask(
        self, state: KeptState, request: dict[str, Any], patient: bool = False
    ) -> tuple[dict[str, Any], int]:
        """The slot's reply, and the level in force. `patient`: wait for the slot for however long that takes."""
        host = state.host
        try:
            async with asyncio.timeout(None if patient else self.config.queue_timeout_s):
                await host.lock.acquire()
        except TimeoutError as error:
            raise InfraError("the slot of this rollout did not become free in time") from error
        try:
            slot = await self._slot(state)
            self.slots.busy.add(slot)
            async with asyncio.timeout(self.slots.answer_s + COPY_S):
                return await slot.ask(request), slot.zygote.isolation.level
        except (OSError, EOFError, TimeoutError) as error:
            self._lose(host)
            raise InfraError(f"a slot with states of rollouts was lost: {type(error).__name__}: {error}") from error
        finally:
            if host.slot is not None:
                self.slots.busy.discard(host.slot)
            host.lock.release()

    async def _slot(self, state: KeptState) -> Slot:
        host = state.host
        if host.slot is not None and not await self.slots.is_usable(host.slot, CLEAN_S):
            self._lose(host)
        if state.slot is not None and state.slot is not host.slot:
            raise InfraError("the process that kept the variables of this rollout is gone")
        if host.slot is None:
            host.slot = await self.slots.new()
        state.slot = host.slot
        return host.slot

    def _lose(self, host: _Host) -> None:
        if host.slot is not None:
            self.slots.busy.discard(host.slot)
            host.slot.close()
            host.slot = None
