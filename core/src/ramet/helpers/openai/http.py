"""One attempt of one request over HTTP. aiohttp is imported with the first one, so that importing this is light."""

from __future__ import annotations

import asyncio
import email.utils
import ipaddress
import json
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from ramet.errors import ConfigError
from ramet.io.json_values import cut, too_deep, visible

if TYPE_CHECKING:
    import aiohttp

MAX_REPLY = 64 << 20  # bytes
CONNECT_S = 15.0
AGAIN = {408, 409, 425, 429}  # besides 5xx: states that pass
SHOWN = 300  # characters of a server's error text


class AttemptFailed(Exception):
    """`again`: another attempt may succeed. `status`: None if there was no reply."""

    def __init__(
        self, message: str, *, again: bool = True, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.again, self.status, self.retry_after_s = again, status, retry_after_s


class Http:
    """Connections of one event loop. `key` is sent as a bearer token and is in no message."""

    def __init__(self, urls: list[str], key: str | None, concurrency: int) -> None:
        try:
            import aiohttp
        except ModuleNotFoundError as error:
            raise ConfigError(
                "an OpenAI-compatible server needs the package aiohttp: pip install 'ramet[openai]'"
            ) from error
        self._errors = (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError)
        self._certificates = aiohttp.ClientConnectorCertificateError
        self._key = key = (key or "").strip()  # of a file, a key often ends in a new line
        self.slots = asyncio.Semaphore(concurrency)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=concurrency),
            headers={"Authorization": f"Bearer {key}"} if key else None,
            trust_env=not all(map(_is_this_machine, urls)),  # proxies of the environment
        )

    async def send(self, url: str, body: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        """POST with a body, else GET; the JSON object that came back. Raises `AttemptFailed`."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        method = "GET" if body is None else "POST"
        request = self._session.request(method, url, json=body, timeout=timeout)
        try:
            async with request as reply:
                content = await _read(reply)
        except TimeoutError as error:
            raise AttemptFailed(f"{without_password(url)}: no reply within {timeout_s:g} s") from error
        except self._errors as error:
            refused = isinstance(error, self._certificates)
            raise AttemptFailed(self._said(url, str(error) or type(error).__name__), again=not refused) from error
        if reply.status != 200:
            raise AttemptFailed(
                self._said(url, f"{reply.status} {reply.reason}{_explained(content)}"),
                again=reply.status in AGAIN or reply.status >= 500,
                status=reply.status,
                retry_after_s=retry_after_s(reply.headers.get("Retry-After")),
            )
        try:
            return _object(content)
        except ValueError as error:
            raise AttemptFailed(self._said(url, f"{error}: {cut(content)}")) from error

    async def aclose(self) -> None:
        await self._session.close()

    def _said(self, url: str, text: str) -> str:
        """What a server said, or did not, without key and password."""
        text = f"{without_password(url)}: {text}"
        return visible(" ".join((text.replace(self._key, "***") if self._key else text).split()))


def without_password(url: str) -> str:
    """As it is shown: without a name and a password in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


async def _read(reply: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in reply.content.iter_any():
        content += chunk
        if len(content) > MAX_REPLY:
            raise ValueError(f"the reply has more than {MAX_REPLY} bytes")
    return bytes(content)


def _object(content: bytes) -> dict[str, Any]:
    """Raises `ValueError`."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError("the reply is no JSON") from error
    if not isinstance(found, dict) or too_deep(found):
        raise ValueError("the reply is no JSON object")
    return found


def _explained(content: bytes) -> str:
    """The server's own words, as the usual error objects have them."""
    text = content[: 4 * SHOWN].decode("utf-8", "replace")
    try:
        found = json.loads(content)
        error = found.get("error", found) if isinstance(found, dict) else found
        text = str(error.get("message", error)) if isinstance(error, dict) else str(error)
    except (ValueError, RecursionError):
        pass
    text = " ".join(text.split())
    return f": {text[:SHOWN]}" if text else ""


def retry_after_s(value: str | None) -> float | None:
    """Return how many seconds from now a `Retry-After` asks to wait; None: there is none that can be read.

    The header holds seconds or a date (RFC 9110, 10.2.3).
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


def _is_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
