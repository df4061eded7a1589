"""The interface of providers, and the five kinds of their failures.

The kind of a fault decides what happens next (`ramet_tools_bing.service`), so a provider must distinguish them. An
answer that cannot be read is a fault. It is never an empty list, which means that the provider found nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ramet.helpers import HttpClient, HttpFailure
from ramet_tools_bing.results import SearchItem

MAX_BYTES = 5_000_000  # of an answer
LONGEST_RETRY_AFTER_S = 600.0


class FaultKind(StrEnum):
    REFUSED = "refused"  # key, account or address are wrong (401, 402, 403, 404, 407): no query can succeed
    BAD_REQUEST = "bad request"  # this request cannot succeed (other 4xx)
    THROTTLED = "throttled"  # 429: all wait
    BROKEN = "broken answer"  # 200 without an answer
    DOWN = "down"  # 5xx, 408, time-out, connection lost

    @classmethod
    def of_reply(cls, status: int | None) -> FaultKind:
        """Return the kind of a failed reply; None: no reply came."""
        if status == 429:
            return cls.THROTTLED
        if status in (401, 402, 403, 404, 407):
            return cls.REFUSED
        if status is None or status >= 500 or status == 408:
            return cls.DOWN
        return cls.BAD_REQUEST if status >= 400 else cls.BROKEN


class ProviderError(Exception):
    """`retry_after_s`: the wait that the service asked for, or None."""

    def __init__(self, fault: FaultKind, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.retry_after_s = retry_after_s

    @classmethod
    def from_http(cls, failure: HttpFailure, more: str = "") -> ProviderError:
        """Build the error of a request; `more` ends its message."""
        fault, wait_s = FaultKind.of_reply(failure.status), failure.retry_after_s
        if wait_s is not None:
            wait_s = min(wait_s, LONGEST_RETRY_AFTER_S) if fault in (FaultKind.THROTTLED, FaultKind.DOWN) else None
        return cls(fault, f"{failure}{more}", retry_after_s=wait_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """`headers` may contain a key, so requests are never printed."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    params: Mapping[str, str] | None = None
    json: Any = None


class ServiceClient:
    """Connections to one service. No redirect is followed: the key would go to wherever the answer points.

    `who` names the service in messages, from which `secret` is cut out.
    """

    def __init__(self, who: str, url: str, secret: str | None) -> None:
        self.who = who
        # Proxies without ~/.netrc, and looked up once. The limiter bounds connections, for all workers together.
        self.http = HttpClient(secret=secret, proxy=environment_proxy(url), max_reply=MAX_BYTES)

    async def ask(self, request: HttpRequest, timeout_s: float) -> dict[str, Any]:
        """Return the service's JSON object. Raises `HttpFailure`."""
        return await self.http.ask(
            request.method, request.url, who=self.who, timeout_s=timeout_s,
            headers=request.headers, params=request.params, json=request.json,
        )  # fmt: skip


def environment_proxy(url: str) -> str | None:
    """Return the proxy that HTTP_PROXY, HTTPS_PROXY and NO_PROXY name for an address."""
    parts = urlsplit(url)
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


class Provider(Protocol):
    """`name` is what results and messages call it. `cached`: False where asking is as cheap as reading a cache."""

    name: str
    cached: bool

    def cache_keys(self, query: str, k: int) -> Sequence[str]:
        """Return where the answer is stored (the first one), and other places of it, in this order."""
        ...

    def options(self, k: int) -> Sequence[tuple[str, str]]:
        """(provider, options as text) that answers are stored with: together with the query they decide the answer."""
        ...

    async def search(self, query: str, k: int, *, timeout_s: float) -> tuple[SearchItem, ...]:
        """Return at most about `k` hits, best first; empty: nothing was found.

        Raises only `ProviderError`.
        """
        ...

    async def aclose(self) -> None: ...
