"""Requests over HTTP whose reply may be anything: bounded in time and size, every failure an `HttpFailure`.

aiohttp is imported with the first client, so that importing this is light.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ramet.errors import ConfigError
from ramet.io.json_values import cut, too_deep, visible

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.abc import AbstractResolver
    from aiohttp.typedefs import StrOrURL

MAX_REPLY = 64 << 20  # bytes
MAX_EXPLANATION = 1 << 16  # bytes of a reply with another status than 200
CONNECT_S = 15.0
AGAIN = {408, 409, 425, 429}  # like 5xx: states that pass
SHOWN = 300  # characters of a server's error text
_PASSWORD = re.compile(r"//[^/?#\s]*@")  # also a proxy's, whose address aiohttp puts into its errors


class HttpFailure(Exception):
    """A request that got no JSON object with status 200. `again`: another attempt may succeed.

    `status`: None if no complete reply came; 200 if it could not be read. Names of `headers` are in lower case.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        again: bool = True,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> None:
        super().__init__(message)
        self.status, self.again, self.headers, self.content = status, again, headers or {}, content
        self.retry_after_s = retry_after_s(self.headers.get("retry-after"))


class HttpClient:
    """Connections of one event loop, opened with the first request.

    Messages begin with `who` and contain neither `secret` nor passwords. `environment`: proxies and ~/.netrc are looked
    up with every request. `resolver` looks the names of hosts up for every connection, so that it can refuse an
    address.
    """

    def __init__(
        self,
        *,
        secret: str | None = None,
        headers: Mapping[str, str] | None = None,
        redirects: bool = False,
        environment: bool = False,
        proxy: str | None = None,
        resolver: AbstractResolver | None = None,
        cookies: bool = False,
        limit: int = 0,
        limit_per_host: int = 0,
        max_reply: int = MAX_REPLY,
    ) -> None:
        try:
            import aiohttp
        except ModuleNotFoundError as error:
            raise ConfigError("requests over HTTP need the package aiohttp: pip install 'ramet[openai]'") from error
        self._aiohttp, self._secret, self._max_reply = aiohttp, secret, max_reply
        self._request: dict[str, Any] = {
            "allow_redirects": redirects,
            "proxy": proxy,
            "timeout": aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        }
        self._session: aiohttp.ClientSession | None = None
        self._connect: Callable[[], aiohttp.ClientSession] = lambda: aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=limit, limit_per_host=limit_per_host, resolver=resolver, use_dns_cache=resolver is None
            ),
            headers=headers,
            cookie_jar=None if cookies else aiohttp.DummyCookieJar(),
            trust_env=environment,
        )

    async def ask(self, method: str, url: StrOrURL, *, who: str, timeout_s: float, **request: Any) -> dict[str, Any]:
        """Return the JSON object that comes with status 200. Raises `HttpFailure`. `request`: arguments of aiohttp."""
        async with self.open(method, url, who=who, timeout_s=timeout_s, **request) as reply:
            most = self._max_reply if reply.status == 200 else MAX_EXPLANATION
            content, is_whole = await read_body(reply, most)
        if reply.status != 200:
            raise self.failure(who, reply.status, {k.lower(): v for k, v in reply.headers.items()}, content)
        if not is_whole:
            raise HttpFailure(f"{who}: the reply has more than {most} bytes", status=200)
        return self.json_object(who, content)

    @asynccontextmanager
    async def open(
        self, method: str, url: StrOrURL, *, who: str, timeout_s: float, **request: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a reply of any status, whose body the block reads. Raises `HttpFailure`."""
        if self._session is None:
            self._session = self._connect()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(method, url, **self._request, **request) as reply,
            ):
                yield reply
        except TimeoutError as error:
            raise HttpFailure(f"{who}: no reply within {round(timeout_s, 2):g} s") from error
        except (self._aiohttp.ClientError, OSError, ValueError) as error:
            again = not isinstance(error, self._aiohttp.ClientConnectorCertificateError)
            raise HttpFailure(self.shown(f"{who}: {str(error) or type(error).__name__}"), again=again) from error

    def failure(self, who: str, status: int, headers: Mapping[str, str], content: bytes) -> HttpFailure:
        """Return the failure of a reply with another status than 200."""
        phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
        message = self.shown(f"{who}: {f'{status} {phrase}'.rstrip()}{_explained(content)}")
        again = status in AGAIN or status >= 500
        return HttpFailure(message, status=status, again=again, headers=headers, content=content)

    def json_object(self, who: str, content: bytes) -> dict[str, Any]:
        """Decode a reply. Raises `HttpFailure`."""
        try:
            value, what = json.loads(content), "not a JSON object"
        except (ValueError, RecursionError):
            value, what = None, "not JSON"
        if not isinstance(value, dict) or too_deep(value):
            raise HttpFailure(self.shown(f"{who}: the reply is {what}: {cut(content)}"), status=200, content=content)
        return value

    def shown(self, text: str) -> str:
        """Return a text as a message shows it: one printable line without key and passwords."""
        text = _PASSWORD.sub("//", text.replace(self._secret, "***") if self._secret else text)
        return visible(" ".join(text.split()))

    async def aclose(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()
            await asyncio.sleep(0)


async def read_body(reply: aiohttp.ClientResponse, most: int) -> tuple[bytes, bool]:
    """Read at most so many bytes; return them and whether they are all. The rest is not read."""
    content = bytearray()
    async for chunk in reply.content.iter_chunked(1 << 16):
        content += chunk
        if len(content) > most:
            reply.close()
            break
    return bytes(content[:most]), len(content) <= most


def _explained(content: bytes) -> str:
    """Return the server's own words, which error objects have in one of few places."""
    text = content[: 4 * SHOWN].decode("utf-8", "replace")
    try:
        reply = json.loads(content)
        error = reply.get("error", reply) if isinstance(reply, dict) else reply
        text = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    except (ValueError, RecursionError):
        pass
    text = " ".join(text.split())
    return f": {text[:SHOWN]}" if text else ""


def retry_after_s(value: str | None) -> float | None:
    """Return how many seconds from now a `Retry-After` asks to wait; None if it cannot be read.

    The header has seconds or a date (RFC 9110, 10.2.3).
    """
    if not value:
        return None
    try:
        seconds = float(value)
        return max(seconds, 0.0) if math.isfinite(seconds) else None
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None
