"""Replies kept in an SQLite file: the same request is answered once, over restarts and by all processes of a machine.

Only JSON is kept, so a file that was shared runs no code. A request is known by the SHA-256 of its canonical JSON, with
the model, the messages and the parameters, without the server's address.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ramet.errors import ConfigError

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")
logger = logging.getLogger(__name__)
BUSY_S = 30.0  # waited for another process that writes


class ReplyCache:
    """One file. All access is in one separate thread, so that a slow disk does not block an event loop."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ramet-reply-cache")
        self._connection: sqlite3.Connection | None = None
        self._warned = False

    async def get(self, key: str) -> dict[str, Any] | None:
        """Raises `ConfigError` if the file is not a cache. An open one that cannot be read for now has no replies."""
        reply: dict[str, Any] | None = await self._run(self._get, key)
        return reply

    async def put(self, key: str, reply: Mapping[str, Any]) -> None:
        """A reply that cannot be written (a full disk) is lost to later runs; that is logged once."""
        await self._run(self._put, key, json.dumps(reply))

    async def aclose(self) -> None:
        await self._run(self._close)
        self._thread.shutdown()

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *args)

    def _get(self, key: str) -> dict[str, Any] | None:
        import sqlite3

        opened = self._connection is not None
        try:
            row = self._open().execute("SELECT reply FROM replies WHERE request = ?", (key,)).fetchone()
            return None if row is None else json.loads(row[0])
        except (sqlite3.Error, ValueError, OSError) as error:
            if opened and isinstance(error, sqlite3.OperationalError):  # locked, or its disk has a fault
                self._warn(f"cannot be read now: {error}")
                return None
            raise ConfigError(f"{self.path}: cannot be read as a cache of replies: {error}") from error

    def _put(self, key: str, reply: str) -> None:
        import sqlite3

        try:
            with self._open() as connection:
                connection.execute("INSERT OR IGNORE INTO replies VALUES (?, ?)", (key, reply))
        except (sqlite3.Error, OSError) as error:
            self._warn(f"replies are no longer kept: {error}")

    def _warn(self, what: str) -> None:
        if not self._warned:
            logger.warning("%s: %s", self.path, what)
        self._warned = True

    def _open(self) -> sqlite3.Connection:
        import sqlite3

        if self._connection is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=BUSY_S)
            with connection:
                connection.execute("CREATE TABLE IF NOT EXISTS replies (request TEXT PRIMARY KEY, reply TEXT NOT NULL)")
            self._connection = connection
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def request_key(path: str, body: Mapping[str, Any]) -> str:
    canonical = json.dumps([path, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
