"""The asyncio face of an engine whose batcher runs in a thread: checks requests, sends commands, awaits replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from torch import Tensor

from ramet.engines.commands import Abort, Close, Do, Pause, Release, Resume, Ticket, Update
from ramet.engines.counters import Counters
from ramet.engines.protocol import Completion, EngineInfo, FirstReport, Request
from ramet.engines.requests import check_request
from ramet.engines.worker import Build, EngineThread
from ramet.errors import InfraError


class ThreadedEngine:
    """`ramet.engines.protocol.Engine` over a batcher, which `build` makes in the thread that will own it."""

    def __init__(self, info: EngineInfo, counters: Counters, build: Build) -> None:
        self.info = info
        self._counters = counters
        self._under_way: set[str] = set()
        self._closed = False
        self._worker = EngineThread(info.name, build)

    @property
    def policy_version(self) -> int:
        return self._worker.version

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        """Sample one turn. Cancelling it aborts the request."""
        check_request(request, self.info, self._under_way)
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        self._under_way.add(request.id)
        self._worker.send(Ticket(request, loop, future, on_first))
        try:
            return await future
        finally:
            self._under_way.discard(request.id)
            if not future.done() or future.cancelled() or future.exception() is not None:
                self._worker.send(Abort(request.id))

    def abort(self, request_id: str) -> None:
        self._worker.send(Abort(request_id))

    def release(self, cache_keys: Sequence[str]) -> None:
        self._worker.send(Release(tuple(cache_keys)))

    async def update_weights(
        self, weights: Iterable[tuple[str, Tensor]], version: int, *, in_flight: bool = False
    ) -> None:
        """Raises `ValueError`, and changes nothing, if names or shapes do not fit the model."""
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._worker.send(Update(list(weights), version, in_flight, loop, future))
        await future

    async def pause(self) -> None:
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._worker.send(Pause(loop, future))
        await future

    async def resume(self) -> None:
        self._worker.send(Resume())

    async def _do(self, work: Callable[[], object]) -> None:
        """Call this in the thread, between two steps."""
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._worker.send(Do(work, loop, future))
        await future

    def metrics(self) -> Mapping[str, float]:
        return self._counters.take()

    async def close(self) -> None:
        """Fail what is under way with `InfraError` and end the thread."""
        self._closed = True
        self._worker.send(Close())
        await asyncio.to_thread(self._worker.join)

    def _check_open(self) -> None:
        if self._closed:
            raise InfraError(f"the {self.info.name} engine was closed")
