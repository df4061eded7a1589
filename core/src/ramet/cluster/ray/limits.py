"""Limiters of a run in one process, shared by all workers and the driver."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import ray
from ray import ObjectRef
from ray.actor import ActorHandle

from ramet.cluster.ray.worker import WorkerLost, translated
from ramet.components.services import LocalLimiters, check_limits, check_same_limits
from ramet.errors import InfraError
from ramet.types import Limiter

T = TypeVar("T")
RESTART_S, RESTART_POLL_S = 20.0, 0.2  # for a lost process to be there again, and between two looks
MAX_WAITING = 100_000  # concurrent calls; an actor allows 1,000 by default
WHO = "the process that keeps the limiters"


Limits = tuple[str, float, int | None]  # name, rate per second, places


class LimiterActor:
    """`LocalLimiters` for other processes."""

    def __init__(self) -> None:
        self._limiters = LocalLimiters()

    async def wait(self, limits: Limits, n: int, at_most_s: float | None) -> None:
        await self._limiters.limiter(*limits).wait(n, at_most_s=at_most_s)

    async def pause(self, limits: Limits, seconds: float, reason: str, slower: bool) -> None:
        await self._limiters.limiter(*limits).pause(seconds, reason=reason, slower=slower)

    async def take_place(self, limits: Limits, held_at_most_s: float) -> int:
        return await self._limiters.limiter(*limits).take_place(held_at_most_s)

    async def leave_place(self, limits: Limits, lease: int) -> None:
        self._limiters.limiter(*limits).leave_place(lease)


def start_limiters() -> ActorHandle[Any]:
    """Start the process, from the driver. It ends with `ray.kill`, or with the driver."""
    kind: type[Any] = LimiterActor
    actor: ActorHandle[Any] = (
        ray.remote(kind).options(num_cpus=0, max_concurrency=MAX_WAITING, max_restarts=-1).remote()
    )
    return actor


class RayLimiters:
    """`ramet.components.services.Limiters` in a worker or the driver. Pickles."""

    def __init__(self, actor: ActorHandle[Any]) -> None:
        self._actor = actor
        self._limits: dict[str, tuple[float, int | None]] = {}

    def limiter(self, name: str, per_s: float, concurrent: int | None = None) -> Limiter:
        """Raises `PluginError` if the name has other limits in this process; `wait` does, if in another one."""
        check_limits(name, per_s, concurrent)
        asked = (per_s, concurrent)
        check_same_limits(name, self._limits.setdefault(name, asked), asked)
        return _RemoteLimiter(self._actor, (name, per_s, concurrent))


class _RemoteLimiter:
    def __init__(self, actor: ActorHandle[Any], limits: Limits) -> None:
        self._actor = actor
        self._limits = limits

    async def wait(self, n: int = 1, *, at_most_s: float | None = None) -> None:
        begun = time.monotonic()

        def ask() -> ObjectRef[None]:
            remaining_s = None if at_most_s is None else max(0.0, at_most_s - (time.monotonic() - begun))
            asked: ObjectRef[None] = self._actor.wait.remote(self._limits, n, remaining_s)
            return asked

        await _answered(ask)

    async def pause(self, seconds: float, *, reason: str = "", slower: bool = False) -> None:
        await _answered(lambda: self._actor.pause.remote(self._limits, seconds, reason, slower))

    @contextlib.asynccontextmanager
    async def place(self, held_at_most_s: float) -> AsyncIterator[None]:
        taken: ObjectRef[int] | None = None

        def take() -> ObjectRef[int]:
            nonlocal taken
            taken = self._actor.take_place.remote(self._limits, held_at_most_s)
            return taken

        try:
            lease = await _answered(take)
        except asyncio.CancelledError:
            if taken is not None:
                taken.future().add_done_callback(self._give_back)  # the place may have been given at the same moment
            raise
        try:
            yield
        finally:
            self._actor.leave_place.remote(self._limits, lease)  # to a process that was started since it does nothing

    def _give_back(self, taken: Future[int]) -> None:
        if not taken.cancelled() and taken.exception() is None:
            self._actor.leave_place.remote(self._limits, taken.result())


async def _answered(ask: Callable[[], ObjectRef[T]]) -> T:
    """Return the process's answer. Ray starts it again if it is lost: limits then begin again, and callers ask again.

    Raises `InfraError` with `retry_after_s` if it does not come back, which keeps no slot.
    """
    ends_at = time.monotonic() + RESTART_S
    while True:
        try:
            return await _answer(ask())
        except WorkerLost as error:
            if time.monotonic() >= ends_at:
                raise InfraError(str(error), retry_after_s=RESTART_S) from error
            await asyncio.sleep(RESTART_POLL_S)


async def _answer(ref: ObjectRef[T]) -> T:
    """Wait for it. A cancelled caller leaves the queue."""
    answer: Awaitable[T] = asyncio.wrap_future(ref.future())
    try:
        return await answer
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # it was let through already, or the process is gone
            ray.cancel(ref)
        raise
    except Exception as error:
        raise translated(error, WHO) from None
