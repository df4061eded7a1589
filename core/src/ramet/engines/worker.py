"""The thread that owns an engine's batcher: commands in through a queue, events out to asyncio loops.

While it computes, tools go on. Nothing else touches batcher, cache or weights. Commands that arrive behind a weight
update wait for it, and the update waits for the requests before it, unless it is one in flight; aborts and releases
never wait.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import Tensor

from ramet.engines.commands import Abort, Close, Command, Do, Pause, Release, Resume, Ticket, Update
from ramet.engines.protocol import Request
from ramet.engines.sequence import Event, RunningSequence, SequenceDone, SequenceFailed, SequenceFirst
from ramet.errors import InfraError

T = TypeVar("T")
logger = logging.getLogger(__name__)
STALL_S = 30.0  # requests that wait for a slot for so long while nothing is computed are reported


class RequestBatcher(Protocol):
    """What an engine computes, free of threads. Used by one thread only, also its construction."""

    version: int  # of the weights
    epoch: int  # weight updates so far, refused ones included

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing runs."""
        ...

    @property
    def running(self) -> bool:
        """Something is being computed."""
        ...

    @property
    def drained(self) -> bool:
        """Nothing of this epoch is left."""
        ...

    def submit(self, request: Request, epoch: int) -> RunningSequence:
        """Queue a request that was checked before; it waits until its epoch has begun."""
        ...

    def step(self) -> list[Event]:
        """One round of computing."""
        ...

    def abort(self, request_id: str) -> list[Event]:
        """End a request with what it has; unknown ids pass."""
        ...

    def release(self, keys: Sequence[str]) -> None:
        """Rollouts with these cache keys are over."""
        ...

    def load(self, weights: Sequence[tuple[str, Tensor]]) -> None:
        """Copy new weights in place. Raises `ValueError`, and changes nothing, if they do not fit."""
        ...

    def next_epoch(self, version: int | None) -> None:
        """The weights are of this version from now on: forget every cache, and let what runs compute its own again.

        None: the weights of this epoch were refused, and the old ones stay with their caches.
        """
        ...


Build: TypeAlias = Callable[[], AbstractContextManager[RequestBatcher]]  # entered and left in the thread


class EngineThread:
    """Builds a batcher and runs it, both in a thread of its own, until `Close`."""

    def __init__(self, name: str, build: Build) -> None:
        """Returns when the batcher stands; raises what `build` raised."""
        self._name = name
        self._build = build
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._tickets: dict[RunningSequence, Ticket] = {}
        self._updates: list[Update] = []
        self._broken: tuple[str, Exception | None] | None = None  # why nothing can be served any more, and its cause
        self._stuck = False  # requests wait, and only a command can help them
        self._paused = False
        self._closed = False
        self._built: Future[RequestBatcher] = Future()
        self._thread = threading.Thread(target=self._run, name=f"ramet-{name}-engine", daemon=True)
        self._thread.start()
        self._batcher = self._built.result()

    @property
    def version(self) -> int:
        return self._batcher.version

    def send(self, command: Command) -> None:
        self._commands.put(command)

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        with ExitStack() as stack:
            try:
                batcher = stack.enter_context(self._build())
            except BaseException as error:  # the constructor waits for it, and raises it
                self._built.set_exception(error)
                return
            self._built.set_result(batcher)
            self._batcher = batcher
            self._serve()

    def _serve(self) -> None:
        while not self._closed:
            try:
                for command in self._next_commands():
                    self._handle(command)
                if self._broken is None:
                    self._compute()
            except Exception as error:  # whatever broke, the requests under way must hear of it
                logger.exception("the %s engine failed; it serves no more requests", self._name)
                self._give_up(f"the {self._name} engine failed: {type(error).__name__}: {error}", error)
        self._give_up(f"the {self._name} engine was closed", None)

    def _compute(self) -> None:
        self._apply_updates()
        if not (self._batcher.idle or self._paused):
            events = self._batcher.step()
            self._stuck = not (events or self._batcher.running)
            self._deliver(events)

    def _next_commands(self) -> list[Command]:
        """What has arrived; waits for a command if there is nothing to compute."""
        commands: list[Command] = []
        at_rest = self._batcher.idle or self._stuck or self._paused
        if self._broken is not None or (at_rest and not self._update_is_due):
            commands.append(self._wait())
        while not self._commands.empty():  # this thread is the only reader
            commands.append(self._commands.get())
        return commands

    def _wait(self) -> Command:
        if self._stuck and not self._paused:
            try:
                return self._commands.get(timeout=STALL_S)
            except queue.Empty:
                logger.warning("requests wait for a cache slot: all are held by keys that were not released")
        return self._commands.get()

    def _handle(self, command: Command) -> None:
        match command:
            case Close():
                self._closed = True
            case Ticket() | Update() | Pause() | Do() if self._broken is not None:
                self._refuse(command)
            case Abort() | Release() if self._broken is not None:
                pass
            case Pause():
                self._paused = True
                _call(command.loop, [partial(_resolve, command.future, None)])
            case Do():
                self._do(command)
            case Resume():
                self._paused = False
            case Abort(request_id):
                self._deliver(self._batcher.abort(request_id))
            case Release(keys):
                self._batcher.release(keys)
            case Ticket():
                sequence = self._batcher.submit(command.request, self._batcher.epoch + len(self._updates))
                self._tickets[sequence] = command
            case Update():
                self._updates.append(command)

    @property
    def _update_is_due(self) -> bool:
        """The first of the updates waits for nothing any more."""
        return bool(self._updates) and (self._updates[0].in_flight or self._batcher.drained)

    def _do(self, command: Do) -> None:
        try:
            command.work()
        except Exception as error:
            failure = InfraError(f"the {self._name} engine failed: {error}")
            _call(command.loop, [partial(_reject, command.future, failure)])
            raise
        _call(command.loop, [partial(_resolve, command.future, None)])

    def _apply_updates(self) -> None:
        while self._update_is_due:
            update = self._updates.pop(0)
            try:
                self._batcher.load(update.weights)
            except ValueError as error:
                self._batcher.next_epoch(None)
                _call(update.loop, [partial(_reject, update.future, error)])
            else:
                self._batcher.next_epoch(update.version)
                _call(update.loop, [partial(_resolve, update.future, None)])

    def _deliver(self, events: Sequence[Event]) -> None:
        """Hand events over, all of one loop in one call."""
        calls: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        for event in events:
            ticket = self._tickets[event.sequence]
            if not isinstance(event, SequenceFirst):
                del self._tickets[event.sequence]
            calls.setdefault(ticket.loop, []).append(partial(_report, ticket, event))
        for loop, actions in calls.items():
            _call(loop, actions)

    def _give_up(self, message: str, cause: Exception | None) -> None:
        """Fail whatever waits, now and later."""
        self._broken = message, cause
        for ticket in self._tickets.values():
            self._refuse(ticket)
        for update in self._updates:
            self._refuse(update)
        self._tickets.clear()
        self._updates.clear()

    def _refuse(self, command: Ticket | Update | Pause | Do) -> None:
        assert self._broken is not None
        message, cause = self._broken
        error = InfraError(message)
        error.__cause__ = cause
        reject: Callable[[asyncio.Future[Any], Exception], None] = _reject
        _call(command.loop, [partial(reject, command.future, error)])


def _call(loop: asyncio.AbstractEventLoop, actions: Sequence[Callable[[], None]]) -> None:
    try:
        loop.call_soon_threadsafe(_run_all, actions)
    except RuntimeError:  # the loop was closed: nobody waits any more
        logger.debug("dropped %d events of a closed loop", len(actions))


def _run_all(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()


def _report(ticket: Ticket, event: Event) -> None:
    match event:
        case SequenceFirst(_, report) if ticket.on_first is not None:
            try:
                ticket.on_first(report)
            except Exception as error:  # the caller's own: its `generate` raises it
                _reject(ticket.future, error)
        case SequenceDone(_, completion):
            _resolve(ticket.future, completion)
        case SequenceFailed(_, error):
            _reject(ticket.future, error)


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
