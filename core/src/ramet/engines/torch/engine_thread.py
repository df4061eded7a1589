"""The thread that owns the batcher: commands in through a queue, events out to asyncio loops.

While it computes, tools continue. Only it touches batcher, cache and weights. Commands that arrive after a weight
update wait for it, and the update waits for the requests before it, unless it is one in flight; aborts and releases
never wait.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from torch import Tensor

from ramet.engines.protocol import Completion, FirstReport, Request
from ramet.engines.sequence import RunningSequence
from ramet.engines.torch.batcher import Event, SequenceDone, SequenceFailed, SequenceFirst, TorchBatcher
from ramet.errors import InfraError

T = TypeVar("T")
logger = logging.getLogger(__name__)
STALL_S = 30.0  # requests that wait for a slot for so long while nothing is computed are reported


@dataclass(frozen=True, slots=True, eq=False)
class Generate:
    """Serve this request. Future and callback are touched on their own loop only."""

    request: Request
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Completion]
    on_first: Callable[[FirstReport], None] | None


@dataclass(frozen=True, slots=True, eq=False)
class Update:
    """New weights. `in_flight` ones wait for no request."""

    weights: Sequence[tuple[str, Tensor]]
    version: int
    in_flight: bool
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class Release:
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Close:
    pass


Command: TypeAlias = Generate | Update | Abort | Release | Close  # their order is kept


class EngineThread:
    """Runs the batcher in a separate thread, until `Close`."""

    def __init__(self, batcher: TorchBatcher) -> None:
        self._batcher = batcher
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._requests: dict[RunningSequence, Generate] = {}
        self._updates: list[Update] = []
        self._broken: tuple[str, Exception | None] | None = None  # why nothing can be served any more, and its cause
        self._stuck = False  # requests wait, and only a command can help them
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="ramet-torch-engine", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int:
        return self._batcher.version

    @property
    def failure(self) -> str | None:
        """Why nothing can be served any more."""
        return None if self._broken is None else self._broken[0]

    def send(self, command: Command) -> None:
        self._commands.put(command)

    def join(self) -> None:
        self._thread.join()

    def _serve(self) -> None:
        while not self._closed:
            try:
                for command in self._next_commands():
                    self._handle(command)
                if self._broken is None:
                    self._compute()
            except Exception as error:  # whatever broke, running requests must fail
                logger.exception("the torch engine failed; it serves no more requests")
                self._give_up(f"the torch engine failed: {type(error).__name__}: {error}", error)
        self._give_up("the torch engine was closed", None)

    def _compute(self) -> None:
        self._apply_updates()
        if not self._batcher.idle:
            events = self._batcher.step()
            self._stuck = not (events or self._batcher.running)
            self._deliver(events)

    def _next_commands(self) -> list[Command]:
        """The commands that have arrived; waits for one if there is nothing to compute."""
        commands: list[Command] = []
        at_rest = self._batcher.idle or self._stuck
        if self._broken is not None or (at_rest and not self._update_is_due):
            commands.append(self._wait())
        while not self._commands.empty():  # this thread is the only reader
            commands.append(self._commands.get())
        return commands

    def _wait(self) -> Command:
        if self._stuck:
            try:
                return self._commands.get(timeout=STALL_S)
            except queue.Empty:
                logger.warning("requests wait for a cache slot: all are held by keys that were not released")
        return self._commands.get()

    def _handle(self, command: Command) -> None:
        match command:
            case Close():
                self._closed = True
            case Generate() | Update() if self._broken is not None:
                self._refuse(command)
            case Abort() | Release() if self._broken is not None:
                pass
            case Abort(request_id):
                self._deliver(self._batcher.abort(request_id))
            case Release(keys):
                self._batcher.release(keys)
            case Generate():
                sequence = self._batcher.submit(command.request, self._batcher.epoch + len(self._updates))
                self._requests[sequence] = command
            case Update():
                self._updates.append(command)

    @property
    def _update_is_due(self) -> bool:
        """The first update need not wait any more."""
        return bool(self._updates) and (self._updates[0].in_flight or self._batcher.drained)

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
            command = self._requests[event.sequence]
            if not isinstance(event, SequenceFirst):
                del self._requests[event.sequence]
            calls.setdefault(command.loop, []).append(partial(_report, command, event))
        for loop, actions in calls.items():
            _call(loop, actions)

    def _give_up(self, message: str, cause: Exception | None) -> None:
        """Fail whatever waits, now and later."""
        self._broken = message, cause
        for command in self._requests.values():
            self._refuse(command)
        for update in self._updates:
            self._refuse(update)
        self._requests.clear()
        self._updates.clear()

    def _refuse(self, command: Generate | Update) -> None:
        assert self._broken is not None
        message, cause = self._broken
        error = InfraError(message)
        error.__cause__ = cause
        reject: Callable[[asyncio.Future[Any], Exception], None] = _reject
        _call(command.loop, [partial(reject, command.future, error)])


def _call(loop: asyncio.AbstractEventLoop, actions: Sequence[Callable[[], None]]) -> None:
    try:
        loop.call_soon_threadsafe(_run_all, actions)
    except RuntimeError:  # the loop was closed: no caller waits any more
        logger.debug("dropped %d events of a closed loop", len(actions))


def _run_all(actions: Sequence[Callable[[], None]]) -> None:
    for action in actions:
        action()


def _report(command: Generate, event: Event) -> None:
    match event:
        case SequenceFirst(_, report) if command.on_first is not None:
            try:
                command.on_first(report)
            except Exception as error:  # the caller's own: its `generate` raises it
                _reject(command.future, error)
        case SequenceDone(_, completion):
            _resolve(command.future, completion)
        case SequenceFailed(_, error):
            _reject(command.future, error)


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
