"""What every provider offers, and the five ways in which one fails.

The kind of a fault decides what happens next (`ramet_tools_bing.service`), so a provider must tell them apart: an
answer that cannot be read is a fault and never an empty list, which means that the provider found nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from ramet_tools_bing.results import SearchItem


class FaultKind(StrEnum):
    REFUSED = "refused"  # key, account or address are wrong (401, 402, 403, 404, 407): no query can succeed
    BAD_REQUEST = "bad request"  # this request cannot succeed (other 4xx)
    THROTTLED = "throttled"  # 429: everybody waits
    BROKEN = "broken answer"  # 200 with something that is no answer
    DOWN = "down"  # 5xx, time-out, connection lost


class ProviderError(Exception):
    """`retry_after_s`: what the service asked for; None: it did not say."""

    def __init__(self, fault: FaultKind, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.retry_after_s = retry_after_s


class Provider(Protocol):
    """`name` is what results and messages call it. `cached`: False where asking is as cheap as reading a cache."""

    name: str
    cached: bool

    def cache_keys(self, query: str, k: int) -> Sequence[str]:
        """Where the answer is stored (the first one), and where else it may be found, in this order."""
        ...

    def options(self, k: int) -> Sequence[tuple[str, str]]:
        """(provider, options as text) that answers are stored with: what besides the query decides them."""
        ...

    async def search(self, query: str, k: int, *, timeout_s: float) -> tuple[SearchItem, ...]:
        """At most about `k` hits, best first; empty: nothing was found. Raises `ProviderError` and nothing else."""
        ...

    async def aclose(self) -> None: ...
