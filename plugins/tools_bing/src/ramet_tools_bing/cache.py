"""Stored answers: of searches, of pages and of summaries, shared by all runs and processes of a user.

A failed read or write does not stop a run: it is reported once, counted, and the call continues without the cache.
Reading takes microseconds and is done in the event loop; writing may have to wait for another process and is done in
one thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diskcache

from ramet_tools_bing.cache_disk import open_disk
from ramet_tools_bing.config import CacheConfig, folder_of
from ramet_tools_bing.queries import imported_key
from ramet_tools_bing.results import SearchResult, read_stored

logger = logging.getLogger(__name__)
NOTHING_FOUND_S = 86_400.0  # how long it is remembered that there is nothing: tomorrow there may be
PROBLEMS = (sqlite3.Error, OSError, ValueError, TypeError, RecursionError, diskcache.Timeout)


@dataclass(slots=True, kw_only=True)
class CacheCounts:
    hits: int = 0
    misses: int = 0
    writes: int = 0
    errors: int = 0


@dataclass(slots=True)
class AnswerCache:
    """A cache in one of its modes. Opened at its first use, once in each process."""

    config: CacheConfig
    counts: CacheCounts = field(default_factory=CacheCounts)
    _disk: diskcache.Cache | None = None
    _pid: int = 0
    _writer: ThreadPoolExecutor | None = None
    _reported: bool = False

    @property
    def folder(self) -> Path:
        return folder_of(self.config)

    @property
    def reads(self) -> bool:
        return self.config.cache in ("rw", "ro")

    @property
    def writes(self) -> bool:
        return self.config.cache in ("rw", "refresh")

    @property
    def replays(self) -> bool:
        """Whether only stored answers may be given."""
        return self.config.cache == "ro"

    def open(self) -> None:
        """Open the folder. Raises `ConfigError` if it must not be used. A disk that fails is reported, as always."""
        if self.config.cache != "off":
            try:
                self._opened()
            except PROBLEMS as error:
                self._report(error)

    def get(self, key: str) -> Any:
        """Return the value stored under the key; None without one, or if it cannot be read."""
        if not self.reads:
            return None
        try:
            value = self._opened().get(key, retry=True)
        except PROBLEMS as error:
            self._report(error)
            value = None
        self.counts.hits += value is not None
        self.counts.misses += value is None
        return value

    def search_result(self, keys: Sequence[str], query: str) -> SearchResult | None:
        """Return the first stored result, or one that was imported for the query from a cache of only queries."""
        for name in (*keys, imported_key(query)):
            value = self.get(name)
            if value is None:
                continue
            try:
                result = read_stored(value)
            except ValueError as error:
                self._report(error)
                continue
            if result.items or self.replays or 0 <= time.time() - result.fetched_at < NOTHING_FOUND_S:
                return result
        return None

    async def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Return when it is stored, or was reported. A cancelled caller does not stop the write."""
        if not self.writes:
            return
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="ramet-cache")
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._writer, self._store, key, value))

    def _store(self, key: str, value: Mapping[str, Any]) -> None:
        try:
            self._opened().set(key, dict(value), retry=True)
            self.counts.writes += 1
        except PROBLEMS as error:
            self._report(error)

    def _opened(self) -> diskcache.Cache:
        if self._disk is None or self._pid != os.getpid():  # a handle must not be used after a fork
            self._disk, self._pid = open_disk(self.folder), os.getpid()
        return self._disk

    def _report(self, error: Exception) -> None:
        self.counts.errors += 1
        if not self._reported:
            self._reported = True
            logger.warning(
                "the cache in %s fails (%s: %s): calls continue without it; `ramet cache check` says what is wrong",
                self.folder, type(error).__name__, error,
            )  # fmt: skip

    def close(self) -> None:
        if self._writer is not None:
            self._writer.shutdown(wait=True)
            self._writer = None
        if self._disk is not None and self._pid == os.getpid():
            self._disk.close()
        self._disk = None
