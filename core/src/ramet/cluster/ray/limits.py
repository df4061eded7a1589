"""Limiters of a run in one process, shared by all workers and the driver."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Any

import ray
from ray import ObjectRef
from ray.actor import ActorHandle

from ramet.cluster.ray.worker import translated
from ramet.components.services import LocalLimiters, check_rate, check_same_rate
from ramet.types import Limiter

MAX_WAITING = 100_000  # concurrent calls; an actor allows 1,000 by default
WHO = "the process that keeps the limiters"


class LimiterActor:
    """`LocalLimiters` for other processes."""

    def __init__(self) -> None:
        self._limiters = LocalLimiters()

    async def wait(self, name: str, per_s: float, n: int) -> None:
        await self._limiters.limiter(name, per_s).wait(n)

    async def pause(self, name: str, per_s: float, seconds: float) -> None:
        await self._limiters.limiter(name, per_s).pause(seconds)


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
        self._rates: dict[str, float] = {}

    def limiter(self, name: str, per_s: float) -> Limiter:
        """Raises `PluginError` if the name has another rate in this process; `wait` does, if it has in another one."""
        check_rate(name, per_s)
        check_same_rate(name, self._rates.setdefault(name, per_s), per_s)
        return _RemoteLimiter(self._actor, name, per_s)


class _RemoteLimiter:
    def __init__(self, actor: ActorHandle[Any], name: str, per_s: float) -> None:
        self._actor = actor
        self._name = name
        self._per_s = per_s

    async def wait(self, n: int = 1) -> None:
        await _answer(self._actor.wait.remote(self._name, self._per_s, n))

    async def pause(self, seconds: float) -> None:
        await _answer(self._actor.pause.remote(self._name, self._per_s, seconds))


async def _answer(ref: ObjectRef[None]) -> None:
    """Wait for it. A cancelled caller leaves the queue."""
    answer: Awaitable[None] = asyncio.wrap_future(ref.future())
    try:
        await answer
    except asyncio.CancelledError:
        with contextlib.suppress(Exception):  # it was let through already, or the process is gone
            ray.cancel(ref)
        raise
    except Exception as error:
        raise translated(error, WHO) from None
