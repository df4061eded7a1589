"""Downloading one page within limits of time, size and redirects."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
from aiohttp.abc import AbstractResolver
from yarl import URL

from ramet import ToolError
from ramet_tools_bing.config import PageConfig
from ramet_tools_bing.fetch.addresses import AddressRefusedError, Network, PublicResolver, refused_url
from ramet_tools_bing.fetch.network_health import NetworkHealth

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
PER_HOST = 4  # connections at the same time
PROBE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """`kind` is `html`, `plain` or `pdf`. `url` is where the last redirect led. `charset` is what the server said."""

    url: str
    kind: str
    body: bytes
    charset: str | None = None


class Downloader:
    """For one event loop. `resolver` looks names up; None: the system does."""

    def __init__(self, config: PageConfig, resolver: AbstractResolver | None = None) -> None:
        self.config = config
        self.allowed: Sequence[Network] = [ipaddress.ip_network(network) for network in config.allow_private]
        self.health = NetworkHealth(config.probes, self._answers)
        self._resolver = resolver
        self._session: aiohttp.ClientSession | None = None

    async def download(self, address: str) -> Download:
        """Raises `ToolError` for what is the address's or the page's doing, `InfraError` for ours."""
        url = self._checked(address)
        ends_at = time.monotonic() + self.config.page_timeout_s
        for _ in range(self.config.redirects + 1):
            try:
                async with asyncio.timeout(ends_at - time.monotonic()):
                    found = await self._get(url)
            except TimeoutError:
                raise await self._lost(
                    url, f"the page did not answer within {self.config.page_timeout_s:g} s"
                ) from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise await self._failed(url, error) from error
            if isinstance(found, Download):
                return found
            url = self._checked(found)
        raise ToolError(f"the page leads on to others more than {self.config.redirects} times")

    def _checked(self, address: str) -> URL:
        url, why = refused_url(address, self.allowed)
        if why is not None:
            raise ToolError(why)
        return url

    async def _failed(self, url: URL, error: Exception) -> ToolError:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, AddressRefusedError):
                return ToolError(str(cause))
            cause = getattr(cause, "os_error", None) or cause.__cause__
        logger.debug("fetch: %s: %s", url.host, error)
        if isinstance(error, aiohttp.ClientResponseError | aiohttp.ClientPayloadError | ValueError):
            return ToolError("the page sent something that cannot be read")
        return await self._lost(url, "the page cannot be reached")

    async def _lost(self, url: URL, text: str) -> ToolError:
        """Raises `InfraError` if it is not the page's doing."""
        await self.health.lost(url.host or "", text)
        return ToolError(text)

    async def _answers(self, address: str) -> bool:
        """Whether anything comes back from there, whatever it is."""
        url, why = refused_url(address, self.allowed)
        if why is not None:
            return False
        try:
            async with asyncio.timeout(PROBE_S), self._open().get(url, headers=HEADERS, allow_redirects=False):
                return True
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError):
            return False

    async def _get(self, url: URL) -> Download | str:
        """The page, or the address that it leads to."""
        async with self._open().get(url, headers=HEADERS, allow_redirects=False) as response:
            self.health.answered(url)
            if response.status in REDIRECTS and "location" in response.headers:
                return str(url.join(URL(response.headers["location"])))
            if response.status != 200:
                raise ToolError(f"the page answered with HTTP {response.status}")
            kind = _kind(response.content_type)
            body = await self._body(response, kind)
            return Download(url=str(url), kind=kind, body=body, charset=response.charset)

    async def _body(self, response: aiohttp.ClientResponse, kind: str) -> bytes:
        """At most as much as is allowed. The beginning of a text is a text, that of a PDF cannot be read."""
        most = int(self.config.page_mb * 1_000_000)
        body = bytearray()
        async for chunk in response.content.iter_chunked(1 << 16):
            body += chunk
            if len(body) > most:
                response.close()
                if kind == "pdf":
                    raise ToolError(f"the page has more than {self.config.page_mb:g} MB")
                break
        return bytes(body[:most])

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=PublicResolver(self.allowed, self._resolver), use_dns_cache=False, limit_per_host=PER_HOST
                ),
                timeout=aiohttp.ClientTimeout(total=self.config.page_timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # a proxy would look names up itself, where nothing checks them
            )
        return self._session

    async def aclose(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()


def _kind(content_type: str) -> str:
    for kind, types in (("html", HTML), ("plain", PLAIN), ("pdf", PDF)):
        if content_type in types:
            return kind
    raise ToolError(f"the page is of the type {content_type[:60]}; only HTML, plain text and PDF can be read")
