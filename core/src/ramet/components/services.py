"""What tools, tool sets and rewards are given when a run starts (`ramet.Services`): limits, a folder, the seed."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from ramet.errors import InfraError, PluginError, RametError
from ramet.plugin_code import raised_at
from ramet.types import Limiter, Services

START_TIMEOUT_S = 120.0
BURST_S = 0.1  # permits unused in this time may be used later, so that late timers do not lower the rate


class TokenBucket:
    """A `Limiter` for one event loop: at most `per_s * (t + BURST_S) + 1` in any `t` seconds, first come, first served.

    The next one is allowed at `_next`, less the burst; this is the token bucket in the form of the "virtual scheduling
    algorithm" (ITU-T I.371, GCRA). The first that waits has the lock; asyncio passes it on in order of arrival.
    """

    def __init__(self, per_s: float) -> None:
        self.per_s = per_s
        self._next = 0.0
        self._turn = asyncio.Lock()

    async def wait(self, n: int = 1) -> None:
        async with self._turn:
            while (left := self._next - BURST_S - time.monotonic()) > 0:
                await asyncio.sleep(left)
            self._next = max(self._next, time.monotonic()) + n / self.per_s

    async def pause(self, seconds: float) -> None:
        self._next = max(self._next, time.monotonic() + seconds + BURST_S)


class Limiters(Protocol):
    """All limiters of a run, as one process sees them."""

    def limiter(self, name: str, per_s: float) -> Limiter:
        """Raises `PluginError` if the name has another rate."""
        ...


@dataclass(slots=True)
class LocalLimiters:
    """For runs within one process, and inside the process that holds them for all others."""

    _buckets: dict[str, TokenBucket] = field(default_factory=dict)

    def limiter(self, name: str, per_s: float) -> Limiter:
        check_rate(name, per_s)
        bucket = self._buckets.setdefault(name, TokenBucket(per_s))
        check_same_rate(name, bucket.per_s, per_s)
        return bucket


def check_rate(name: str, per_s: float) -> None:
    if not (isinstance(per_s, int | float) and 0 < per_s < math.inf):
        raise PluginError(f"limiter {name!r}: a rate of {per_s!r} per s; allowed: a finite number over 0")


def check_same_rate(name: str, first: float, per_s: float) -> None:
    if per_s != first:
        raise PluginError(
            f"limiter {name!r}: asked for with {per_s:g} per s, and before with {first:g} per s; a limiter has one "
            "rate in all of a run"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """The services of a run in one process. `folder` is where the run's components keep their files."""

    folder: Path
    seed: int
    limiters: Limiters = field(default_factory=LocalLimiters)

    def of(self, component: str) -> Services:
        """For one component, as the configuration names it: `tools.search`."""
        return _ComponentServices(self.folder / component, self.seed, self.limiters)


class _ComponentServices:
    """`ramet.Services`. The folder is created at its first use."""

    def __init__(self, folder: Path, seed: int, limiters: Limiters) -> None:
        self._folder = folder
        self._limiters = limiters
        self.seed = seed

    @property
    def folder(self) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder

    def limiter(self, name: str, per_s: float) -> Limiter:
        return self._limiters.limiter(name, per_s)


async def start_component(component: object, label: str, services: Services) -> None:
    """Call its `start`, if it has one. `label` names it in messages.

    Raises its `RametError` as it is, `InfraError` if it does not return, `PluginError` for anything else.
    """
    start = getattr(component, "start", None)
    if start is None:
        return
    try:
        async with asyncio.timeout(START_TIMEOUT_S) as deadline:
            await start(services)
    except RametError:
        raise
    except Exception as error:
        if deadline.expired():
            raise InfraError(f"{label} did not start within {START_TIMEOUT_S:g} s") from error
        raise PluginError(f"{label} could not start: {type(error).__name__}: {error}{raised_at(error)}") from error
