"""Downloading one page within limits of time, size and redirects."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from ramet import InfraError, ToolError
from ramet.helpers import HttpClient, HttpFailure, read_body
from ramet_tools_bing.config import PageConfig
from ramet_tools_bing.fetch.addresses import AddressRefusedError, Network, PublicResolver, refused_url

logger = logging.getLogger(__name__)
HTML = ("text/html", "application/xhtml+xml", "application/xml", "text/xml")
PLAIN = ("text/plain", "text/markdown")
PDF = ("application/pdf", "application/x-pdf")
REDIRECTS = frozenset({301, 302, 303, 307, 308})
HEADERS = {
    "User-Agent": "Mozilla/5.0 (compatible; Ramet/0.1; page reader of a research tool)",
    "Accept": "text/html,application/xhtml+xml,application/pdf;q=0.9,text/plain;q=0.8",
    "Accept-Language": "en,zh;q=0.8,*;q=0.5",
}
CONNECTIONS, PER_HOST = 100, 4  # at the same time
PROBE_S = 5.0
LOST_HOSTS = 8  # in a row, before others are asked
REMEMBERED = 4  # hosts that answered last
NETWORK_DOWN_S = 30.0  # for how long the others are not asked again


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """`kind` is `html`, `plain` or `pdf`. `url` is where the last redirect led. `charset` is what the server said."""

    url: str
    kind: str
    body: bytes
    charset: str | None = None


class Downloader:
    """Downloads of one event loop. `resolver` looks names up; None: the system does."""

    def __init__(self, config: PageConfig, resolver: AbstractResolver | None = None) -> None:
        self.config = config
        self.allowed: Sequence[Network] = [ipaddress.ip_network(network) for network in config.allow_private]
        self.health = NetworkHealth(config.probes, self._answers)
        # No proxy of the environment: it would look names up itself, where nothing checks them.
        self.http = HttpClient(
            headers=HEADERS, resolver=PublicResolver(self.allowed, resolver), limit=CONNECTIONS, limit_per_host=PER_HOST
        )

    async def download(self, address: str) -> Download:
        """Download a page. Raises `ToolError` if the address or the page is the cause, otherwise `InfraError`."""
        url = self._checked(address)
        ends_at = time.monotonic() + self.config.page_timeout_s
        for _ in range(self.config.redirects + 1):
            try:
                answer = await self._get(url, ends_at - time.monotonic())
            except HttpFailure as error:
                raise await self._failed(url, error) from error
            if isinstance(answer, Download):
                return answer
            url = self._checked(answer)
        raise ToolError(f"the page leads on to others more than {self.config.redirects} times")

    def _checked(self, address: str) -> URL:
        url, why = refused_url(address, self.allowed)
        if why is not None:
            raise ToolError(why)
        return url

    async def _failed(self, url: URL, error: HttpFailure) -> ToolError:
        cause = failed = error.__cause__
        while cause is not None:
            if isinstance(cause, AddressRefusedError):
                return ToolError(str(cause))
            cause = getattr(cause, "os_error", None) or cause.__cause__
        logger.debug("fetch: %s: %s", url.host, error)
        if isinstance(failed, aiohttp.ClientResponseError | aiohttp.ClientPayloadError | ValueError):
            return ToolError("the page sent something that cannot be read")
        text = "the page cannot be reached"
        if isinstance(failed, TimeoutError):
            text = f"the page did not answer within {self.config.page_timeout_s:g} s"
        await self.health.lost(url.host or "", text)  # raises `InfraError` if it is not the page's doing
        return ToolError(text)

    async def _answers(self, address: str) -> bool:
        """Whether anything comes back from there, whatever it is."""
        url, why = refused_url(address, self.allowed)
        if why is not None:
            return False
        try:
            async with self.http.open("GET", url, who="fetch", timeout_s=PROBE_S):
                return True
        except HttpFailure:
            return False

    async def _get(self, url: URL, timeout_s: float) -> Download | str:
        """Return the page, or the address that it leads to."""
        async with self.http.open("GET", url, who="fetch", timeout_s=timeout_s) as response:
            self.health.answered(url)
            if response.status in REDIRECTS and "location" in response.headers:
                return str(url.join(URL(response.headers["location"])))
            if response.status != 200:
                raise ToolError(f"the page answered with HTTP {response.status}")
            kind = _kind(response.content_type)
            body, is_whole = await read_body(response, int(self.config.page_mb * 1_000_000))
            if not is_whole and kind == "pdf":  # a cut text can be read, a cut PDF cannot
                raise ToolError(f"the page has more than {self.config.page_mb:g} MB")
            return Download(url=str(url), kind=kind, body=body, charset=response.charset)


def _kind(content_type: str) -> str:
    for kind, types in (("html", HTML), ("plain", PLAIN), ("pdf", PDF)):
        if content_type in types:
            return kind
    raise ToolError(f"the page is of the type {content_type[:60]}; only HTML, plain text and PDF can be read")


class NetworkHealth:
    """Whether pages or this machine's network are the reason that pages cannot be reached. For one event loop.

    Which hosts are asked is the model's choice, so hosts that are lost prove nothing: a model that could have its
    rollouts masked by asking for hosts that do not exist would learn to do so. After some in a row, hosts that it has
    not just chosen are asked: the hosts that answered last, and the hosts of `probes`. Only if none of them answers,
    the network is the reason. `answers(address)` says whether anything comes back from there.
    """

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
        """Note a host that is lost. Raises `InfraError` if it is our network that is down."""
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
