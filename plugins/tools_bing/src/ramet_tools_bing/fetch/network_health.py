"""Whether pages cannot be reached because of them or because of our own network.

Which hosts are asked is the model's choice, so hosts that are lost prove nothing: a model that could have its rollouts
masked by asking for hosts that are not there would learn to do so. After some in a row others are asked that it has not
just chosen: the hosts that answered last, and those of the option `probes`. Only if none of them answers it is us.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from yarl import URL

from ramet import InfraError

LOST_HOSTS = 8  # in a row, before others are asked
REMEMBERED = 4  # hosts that answered last
NETWORK_DOWN_S = 30.0  # for how long it is not looked at again


class NetworkHealth:
    """For one event loop. `answers(address)` says whether anything at all comes back from there."""

    def __init__(self, probes: Sequence[str], answers: Callable[[str], Awaitable[bool]]) -> None:
        self._probes = probes
        self._answers = answers
        self._known: dict[str, None] = {}  # origins that have answered, the latest last
        self._lost: set[str] = set()  # hosts since the last one that answered
        self._looking = asyncio.Lock()
        self._down_until = 0.0

    def answered(self, url: URL) -> None:
        self._lost.clear()
        self._down_until = 0.0
        origin = str(url.origin())
        self._known.pop(origin, None)
        self._known[origin] = None
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]

    async def lost(self, host: str, reason: str) -> None:
        """Raises `InfraError` if it is our network that is down."""
        self._lost.add(host)
        if len(self._lost) < LOST_HOSTS:
            return
        async with self._looking:
            others = [*self._known, *self._probes]
            if len(self._lost) < LOST_HOSTS or not others:
                return
            if time.monotonic() >= self._down_until:
                if any(await asyncio.gather(*map(self._answers, others))):
                    self._lost.clear()
                    return
                self._down_until = time.monotonic() + NETWORK_DOWN_S
            raise InfraError(
                f"fetch: none of the last {len(self._lost)} hosts could be reached, nor any of {', '.join(others)}: "
                f"the network seems to be down ({reason})",
                retry_after_s=max(1.0, self._down_until - time.monotonic()),
            )
