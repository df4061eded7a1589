"""The limiter of a service within one process: a rate, places for calls that run at the same time, and pauses.

The rate is a token bucket in the form of the "virtual scheduling algorithm" (ITU-T I.371, GCRA): the next permit is
given at `_next`, less the burst. The first that waits has the lock; asyncio passes it on in order of arrival.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import AsyncIterator

from ramet.errors import InfraError
from ramet.types import Limiter

BURST_S = 0.1  # permits unused in this time may be used later, so that late timers do not lower the rate
LEAST_SHARE = 1 / 16  # of the rate, however often the service said that it is too high
RECOVERY_S = 60.0  # without such an answer double a lowered rate


class TokenBucket:
    """A `Limiter` for one event loop: at most `per_s * (t + BURST_S) + 1` in any `t` seconds, first come, first served.

    `concurrent` places; None: as many as ask.
    """

    def __init__(self, per_s: float, concurrent: int | None = None) -> None:
        self.per_s = per_s
        self.concurrent = concurrent
        self._next = 0.0
        self._turn = asyncio.Lock()
        self._queued = 0  # permits that are waited for
        self._paused_until, self._reason = 0.0, ""
        self._share, self._lowered_at = 1.0, 0.0
        self._places = asyncio.Semaphore(concurrent) if concurrent is not None else None
        self._leases: dict[int, asyncio.TimerHandle] = {}
        self._ids = itertools.count(secrets.randbits(48))  # leases of a dead process release nothing here

    @property
    def rate(self) -> float:
        """Permits per second now."""
        while self._share < 1 and time.monotonic() - self._lowered_at >= RECOVERY_S:
            self._share, self._lowered_at = min(1.0, 2 * self._share), self._lowered_at + RECOVERY_S
        return self.per_s * self._share

    async def wait(self, n: int = 1, *, at_most_s: float | None = None) -> None:
        ends_at = None if at_most_s is None else time.monotonic() + at_most_s
        self._refuse_if_late(self._left() + self._queued / self.rate, ends_at)
        self._queued += n
        try:
            async with self._turn:
                while (wait_s := self._left()) > 0:
                    self._refuse_if_late(wait_s, ends_at)
                    await asyncio.sleep(wait_s)
                self._next = max(self._next, time.monotonic()) + n / self.rate
        finally:
            self._queued -= n

    def _left(self) -> float:
        """Seconds until the next permit."""
        return self._next - BURST_S - time.monotonic()

    def _refuse_if_late(self, wait_s: float, ends_at: float | None) -> None:
        now = time.monotonic()
        if ends_at is None or wait_s <= 0 or now + wait_s <= ends_at:
            return
        paused = self._reason if now < self._paused_until else ""
        raise InfraError(paused or f"more calls than {self.rate:g} per s", retry_after_s=wait_s)

    async def pause(self, seconds: float, *, reason: str = "", slower: bool = False) -> None:
        now = time.monotonic()
        if now + seconds > self._paused_until:
            self._paused_until, self._reason = now + seconds, reason
        self._next = max(self._next, now + seconds + BURST_S)
        if slower:
            self._share, self._lowered_at = max(LEAST_SHARE, self.rate / self.per_s / 2), now

    @contextlib.asynccontextmanager
    async def place(self, held_at_most_s: float) -> AsyncIterator[None]:
        lease = await self.take_place(held_at_most_s)
        try:
            yield
        finally:
            self.leave_place(lease)

    async def take_place(self, held_at_most_s: float) -> int:
        """A lease for `leave_place`. It ends by itself after so long: the process that took it may be gone."""
        if self._places is not None:
            await self._places.acquire()
        lease = next(self._ids)
        self._leases[lease] = asyncio.get_running_loop().call_later(held_at_most_s, self.leave_place, lease)
        return lease

    def leave_place(self, lease: int) -> None:
        """Give the place back; does nothing if the lease has ended."""
        timer = self._leases.pop(lease, None)
        if timer is not None:
            timer.cancel()
            if self._places is not None:
                self._places.release()


def local_limiter(per_s: float, concurrent: int | None = None) -> Limiter:
    """A limiter for one event loop, for a component that is used without a run (`Services.limiter` is a run's)."""
    return TokenBucket(per_s, concurrent)
