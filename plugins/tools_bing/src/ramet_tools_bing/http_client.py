"""Requests whose answer may be anything: bounded in time and size, decoded here, every failure of a known kind.

aiohttp's own `json()` returns None for an empty answer, raises for other content types, and reads bodies of any size.
No redirect is followed: the key would go to wherever the answer points.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from ramet.helpers import retry_after_s
from ramet_tools_bing.providers.base import FaultKind, ProviderError

MAX_BYTES = 5_000_000
SHOWN_CHARS = 200  # of an answer, in a message
LONGEST_RETRY_AFTER_S = 600.0
_PASSWORD = re.compile(r"//[^/?#]*@")  # also that of a proxy, whose address aiohttp puts into its errors
REFUSED = frozenset({401, 402, 403, 404, 407})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """`headers` may hold a key, so requests are never printed."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    params: Mapping[str, str] = field(default_factory=dict)
    json: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpReply:
    """What came with status 200. Header names are in lower case."""

    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Connections of one event loop. `who` names the service in messages, from which `secret` is cut out."""

    def __init__(self, who: str, secret: str | None = None) -> None:
        self.who = who
        self._secret = secret
        self._session: aiohttp.ClientSession | None = None
        self._proxy: str | None = None

    async def send(self, request: HttpRequest, *, timeout_s: float) -> HttpReply:
        """Raises `ProviderError` for everything but a complete answer with status 200."""
        try:
            async with self._open(request.url).request(
                request.method,
                request.url,
                headers=request.headers,
                params=request.params or None,
                json=request.json,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
                proxy=self._proxy,
            ) as response:
                headers = {name.lower(): value for name, value in response.headers.items()}
                if response.status != 200:
                    start = await response.content.read(4 * SHOWN_CHARS)
                    raise self.fault(response.status, headers, start.decode("utf-8", "replace"))
                return HttpReply(headers=headers, body=await self._body(response))
        except TimeoutError as error:
            raise ProviderError(FaultKind.DOWN, f"{self.who} did not answer within {timeout_s:.3g} s") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ProviderError(FaultKind.DOWN, self.shown(f"{self.who}: {type(error).__name__}: {error}")) from error

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        body = bytearray()
        if (response.content_length or 0) <= MAX_BYTES:
            async for chunk in response.content.iter_chunked(1 << 16):
                body += chunk
                if len(body) > MAX_BYTES:
                    break
            else:
                return bytes(body)
        response.close()  # what is left must not be read to the end
        raise ProviderError(FaultKind.BROKEN, f"{self.who} sent more than {MAX_BYTES // 1_000_000} MB")

    def fault(self, status: int, headers: Mapping[str, str], text: str) -> ProviderError:
        """The error of an answer with another status than 200."""
        said = " ".join(text.split())[:SHOWN_CHARS]
        message = self.shown(f"{self.who} answered with HTTP {status}{_code(headers)}{f': {said}' if said else ''}")
        if status == 429:
            return ProviderError(FaultKind.THROTTLED, message, retry_after_s=retry_after(headers))
        if status in REFUSED:
            return ProviderError(FaultKind.REFUSED, message)
        if status >= 500 or status == 408:
            return ProviderError(FaultKind.DOWN, message, retry_after_s=retry_after(headers))
        if status >= 400:
            return ProviderError(FaultKind.BAD_REQUEST, message)
        return ProviderError(FaultKind.BROKEN, message)

    def shown(self, text: str) -> str:
        """For a message: printable, without the key, which a service may repeat, and without passwords in addresses."""
        text = _PASSWORD.sub("//***@", text.replace(self._secret, "***") if self._secret else text)
        return "".join(c if c.isprintable() else " " for c in text)

    def _open(self, url: str) -> aiohttp.ClientSession:
        """aiohttp's `trust_env` would look for a proxy, and read ~/.netrc, with every request."""
        if self._session is None:
            self._proxy = environment_proxy(url)
            connector = aiohttp.TCPConnector(limit=0)  # the limiter bounds them, for all workers together
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    async def aclose(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
            await asyncio.sleep(0)


def environment_proxy(url: str) -> str | None:
    """What HTTP_PROXY, HTTPS_PROXY and NO_PROXY say of this address."""
    parts = urlsplit(url)
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def decoded_json(body: bytes, who: str) -> Any:
    """Raises `ProviderError` with what it is instead."""
    if not body.strip():
        raise ProviderError(FaultKind.BROKEN, f"{who} sent an empty answer")
    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        start = body[:SHOWN_CHARS].lstrip().lower()
        what = "HTML" if start.startswith((b"<!doctype", b"<html", b"<head", b"<body")) else "no JSON"
        raise ProviderError(FaultKind.BROKEN, f"{who} sent {what}") from error


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, bounded. None: there is none that can be read."""
    seconds = retry_after_s(headers.get("retry-after"))
    return None if seconds is None else min(seconds, LONGEST_RETRY_AFTER_S)


def _code(headers: Mapping[str, str]) -> str:
    """Bright Data's own code and words, which are in headers of one of two names."""
    code = headers.get("x-brd-error-code") or headers.get("x-brd-err-code")
    words = headers.get("x-brd-error") or headers.get("x-brd-err-msg")
    return f" ({', '.join(one[:100] for one in (code, words) if one)})" if code or words else ""
