"""Frames between the client and a slot: four bytes of length, then one JSON object.

JSON is written as ASCII, so a program that holds lone surrogates crosses unharmed.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

HEADER = struct.Struct("!I")


def pack(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode("ascii")
    return HEADER.pack(len(body)) + body


def unpack_size(header: bytes) -> int:
    size: int = HEADER.unpack(header)[0]
    return size


def unpack(body: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(body)
    return message


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    sock.sendall(pack(message))


def receive(sock: socket.socket) -> dict[str, Any] | None:
    """The next message; None when the other side is gone."""
    header = _exactly(sock, HEADER.size)
    if header is None:
        return None
    body = _exactly(sock, unpack_size(header))
    return None if body is None else unpack(body)


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
