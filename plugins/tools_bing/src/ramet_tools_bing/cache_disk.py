"""The cache on disk: diskcache with JSON as the only form of values.

diskcache pickles by default, so that a process that can write its folder runs code in its readers (CVE-2025-69872).
Here keys are texts and values JSON texts; other types are refused in both directions. It also evicts entries by
default, and its settings are in the database, where a process that opens it changes them for all: they are set and
verified each time.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diskcache
from diskcache.core import MODE_RAW, MODE_TEXT, UNKNOWN

from ramet import ConfigError

FORMAT = 1
FORMAT_KEY = "ramet:format"
SETTINGS: dict[str, Any] = {"eviction_policy": "none", "size_limit": 1 << 40, "cull_limit": 0}
_FILE = re.compile(r"[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{28}\.val")
TIMEOUT_S = 60.0  # for a writer that another process keeps waiting


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """A key as another program stored it. It is not decoded; its entry can be deleted by it, and not read."""

    stored: Any
    raw: bool


class JSONTextDisk(diskcache.Disk):  # type: ignore[misc]  # diskcache has no types
    """Text keys and JSON values: pickle is neither read nor written."""

    def put(self, key: object) -> tuple[Any, bool]:
        if isinstance(key, ForeignKey):
            return key.stored, key.raw
        if type(key) is not str:
            raise TypeError("cache keys must be texts")
        return key, True

    def get(self, key: Any, raw: bool) -> str | ForeignKey:
        return key if raw and isinstance(key, str) else ForeignKey(key, bool(raw))

    def store(self, value: Any, read: bool, key: Any = UNKNOWN) -> Any:
        if read:
            raise TypeError("streams cannot be stored")
        text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
        return super().store(text, False, key=key)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> Any:
        if mode not in (MODE_RAW, MODE_TEXT):
            raise ValueError(f"refusing a cache entry in mode {mode}")
        if filename is not None and not _is_own(filename):
            raise ValueError(f"refusing a cache entry in the file {filename!r}")
        return json.loads(super().fetch(mode, filename, value, False))

    def remove(self, file_path: str) -> None:
        """Remove a replaced entry's file, if its name is one that a cache makes: the database's writer chose it."""
        if _is_own(file_path):
            super().remove(file_path)


def _is_own(filename: str) -> bool:
    """Whether it has the form of the names that diskcache gives (`Disk.filename`)."""
    return _FILE.fullmatch(filename) is not None


def open_disk(folder: Path) -> diskcache.Cache:
    """Open the cache in this folder, or make it, for one process; any number may have it open.

    Raises `ConfigError` if it cannot be trusted or read, `OSError` and `sqlite3.Error` if the disk refuses.
    """
    _make_private(folder)
    cache = diskcache.Cache(str(folder), disk=JSONTextDisk, timeout=TIMEOUT_S, **SETTINGS)
    try:
        wrong = {name: getattr(cache, name) for name, value in SETTINGS.items() if getattr(cache, name) != value}
        if wrong:
            raise ConfigError(f"{folder}: settings of the cache cannot be set: {wrong}")
        cache.add(FORMAT_KEY, FORMAT, retry=True)
        stored_format = cache.get(FORMAT_KEY, retry=True)
        if stored_format != FORMAT:
            raise ConfigError(f"{folder}: the cache has format {stored_format!r}; this version reads {FORMAT}")
    except BaseException:
        cache.close()
        raise
    return cache


def _make_private(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.stat()
    if status.st_uid not in (os.getuid(), 0):
        raise ConfigError(f"{folder} belongs to user {status.st_uid}, this is {os.getuid()}; take a cache of your own")
    if stat.S_IMODE(status.st_mode) & 0o022:
        raise ConfigError(
            f"{folder} can be written by other users (mode {stat.S_IMODE(status.st_mode):o}), who could put entries "
            f"into the cache; `chmod 700 {folder}` helps"
        )
