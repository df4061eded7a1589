"""The addresses that may be read: http and https, and only hosts of the public internet.

A page, or a model that a page has talked to, can ask for `http://127.0.0.1:8000` or for a cloud's metadata service. So
an address is refused before a request and after every redirect, and the numbers of its name are checked where the
connection takes them from: a name cannot change its meaning in between.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
LONGEST = 2000  # characters of an address
# Public addresses at which clouds offer services to the machine itself.
METADATA = frozenset(map(ipaddress.ip_address, ("168.63.129.16",)))  # Azure
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# IANA's special-purpose registries (RFC 6890 and later), of which the interpreter's `is_global` knows what its version
# knew: before 3.11.10 it took 192.0.0.0/24 and fec0::/10 for public (CVE-2024-4032).
_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 192.0.2.0/24 "
        "192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/3 "
        "2001::/23 2001:db8::/32 2002::/16 3fff::/20".split(),
    )
)
_PUBLIC_6 = ipaddress.ip_network("2000::/3")  # global unicast: all that IANA has given to the internet


class AddressRefusedError(OSError):
    """The text is fit for the model."""


def refused_url(text: str, allowed: Sequence[Network]) -> tuple[URL, str | None]:
    """The address in its one form, without user and password, and why it must not be read (None: it may)."""
    if len(text) > LONGEST:
        return URL(), f"the address has more than {LONGEST} characters"
    try:
        url = URL(text.strip())
        host, port = url.raw_host, url.port
    except (ValueError, UnicodeError):
        return URL(), "this is no address of a page"
    if url.scheme not in ("http", "https") or not host:
        return url, "only addresses that begin with http:// or https:// can be read"
    if not port:
        return url, "this is no address of a page"
    url = url.with_user(None).with_fragment(None)
    number = _number(host)
    if number is not None and not is_public(number, allowed):
        return url, "this address is not public"
    return url, None


def _number(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.ip_address(socket.inet_aton(host))  # 127.1, 0x7f000001, 2130706433
    except (OSError, ValueError):
        return None


def is_public(number: Address, allowed: Sequence[Network] = ()) -> bool:
    """Whether a number is one of the public internet, or in a network that is allowed."""
    if any(number in network for network in allowed if network.version == number.version):
        return True
    inner = _inside(number)
    if inner is not None:
        return is_public(inner, allowed)
    if number in METADATA or (number.version == 6 and number not in _PUBLIC_6):
        return False
    return not any(number in network for network in _NOT_PUBLIC if network.version == number.version)


def _inside(number: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that an IPv6 address embeds."""
    if isinstance(number, ipaddress.IPv4Address):
        return None
    if number in _NAT64:
        return ipaddress.IPv4Address(int(number) & 0xFFFFFFFF)
    return number.ipv4_mapped or number.sixtofour or (number.teredo[1] if number.teredo else None)


class PublicResolver(AbstractResolver):
    """A resolver that refuses a name with a forbidden number, whatever other numbers the name has."""

    def __init__(self, allowed: Sequence[Network], inner: AbstractResolver | None = None) -> None:
        self._allowed = allowed
        self._inner = inner or aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = await self._inner.resolve(host, port, family)
        if not addresses:
            raise OSError(f"{host} has no address")
        for address in addresses:
            if not is_public(ipaddress.ip_address(address["host"].partition("%")[0]), self._allowed):
                raise AddressRefusedError("this address is not public")
        return addresses

    async def close(self) -> None:
        await self._inner.close()
