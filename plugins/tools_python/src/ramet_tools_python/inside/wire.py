"""Frames between the client, a slot and its programs: four bytes of length, then one JSON object.

JSON is written as ASCII, so a program with lone surrogates crosses unharmed. Between a slot and its programs
descriptors travel with a frame.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from typing import Any

HEADER = struct.Struct("!I")
PATIENCE_S = 10.0  # for a process to get ready, or to copy itself
_CREDENTIALS = struct.Struct("=iII")  # process, user, group


def pack(message: dict[str, Any]) -> bytes:
    body = json.dumps(message).encode("ascii")
    return HEADER.pack(len(body)) + body


def unpack_size(header: bytes) -> int:
    size: int = HEADER.unpack(header)[0]
    return size


def unpack(body: bytes) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(body)
    return message


def send(sock: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    data = pack(message)
    if descriptors:
        sent = socket.send_fds(sock, [data], list(descriptors))
        data = data[sent:]
    sock.sendall(data)


def receive(sock: socket.socket) -> dict[str, Any] | None:
    """The next message; None when the other side is gone."""
    header = _exactly(sock, HEADER.size)
    if header is None:
        return None
    body = _exactly(sock, unpack_size(header))
    return None if body is None else unpack(body)


def receive_with(sock: socket.socket, most: int) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message, and at most so many descriptors that came with it."""
    header, descriptors, _, _ = socket.recv_fds(sock, HEADER.size, most)
    rest = _exactly(sock, HEADER.size - len(header)) if header else None
    body = None if rest is None else _exactly(sock, unpack_size(header + rest))
    return (None if body is None else unpack(body)), descriptors


def receive_credentials(sock: socket.socket) -> int | None:
    """The process that sent the next byte, as the kernel says. None if it is not known. The socket has SO_PASSCRED."""
    data, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
    for level, kind, content in ancillary:
        if data and level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            process: int = _CREDENTIALS.unpack(content[: _CREDENTIALS.size])[0]
            return process
    return None


def _exactly(sock: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = sock.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
