"""Entries of the cache as files: the published form, JSON lines of our own, and other caches.

Whatever comes in is validated entry by entry, never replaces a newer one, and changes nothing when it comes in twice.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import diskcache

from ramet import ConfigError
from ramet_tools_bing.cache_disk import FORMAT_KEY, open_disk
from ramet_tools_bing.queries import MOST_CHARS, imported_key, normalised
from ramet_tools_bing.results import NOTHING, SearchItem, SearchResult, read_stored

DATABASE = "cache.db"
LAST_TIME = 253402300800  # 1 January 10000: later numbers are not times
IMPORTED = "imported"  # the provider of answers that were published with only their query
NO_ENTRIES = "neither a JSON object of queries and texts nor JSON lines of `ramet cache export`"
BATCH = 1000  # entries in one transaction
_PAGE = re.compile(r"(?:^|\n)Page (\d+): ")
_KEY = re.compile(r"[0-9a-f]{64}")
Entry = tuple[str, dict[str, Any]]  # key, value


def entries(cache: diskcache.Cache) -> Iterator[Entry]:
    """Every entry that can be read, in the order of its key."""
    for key in sorted(key for key in cache if isinstance(key, str) and key != FORMAT_KEY):
        try:
            value = cache.get(key, retry=True)
        except (ValueError, OSError):
            continue
        if isinstance(value, dict):
            yield key, value


def holds_answers(folder: Path) -> bool:
    """Whether a cache has any entry. One that cannot be read counts: its users report the problem."""
    if not (folder / DATABASE).exists():
        return False
    try:
        with open_disk(folder) as cache:
            return any(key != FORMAT_KEY for key in cache)
    except (ConfigError, sqlite3.Error, OSError):
        return True


def stored_providers(folder: Path) -> set[str]:
    """Providers whose answers a cache has; empty without a cache, or if it cannot be read."""
    if not (folder / DATABASE).exists():
        return set()
    try:
        with open_disk(folder) as cache:
            return {str(value["provider"]) for _, value in entries(cache) if kind_of(value) == "search"}
    except (ConfigError, sqlite3.Error, OSError, KeyError):
        return set()


def recorded_options(folder: Path) -> set[tuple[str, str]]:
    """(provider, options) of the searches of a cache that say so; empty if it cannot be read."""
    try:
        with open_disk(folder) as cache:
            return {
                (str(value["provider"]), str(value["options"]))
                for _, value in entries(cache)
                if kind_of(value) == "search" and "provider" in value and "options" in value
            }
    except (ConfigError, sqlite3.Error, OSError):
        return set()


def kind_of(value: Mapping[str, Any]) -> str:
    """The kind of an entry: `search`, `page`, `summary` or `unknown`."""
    if "items" in value:
        return "search"
    if "summary" in value:
        return "summary"
    return "page" if "text" in value else "unknown"


def put_all(cache: diskcache.Cache, new_entries: Iterable[Entry], counts: Counter[str]) -> None:
    """Add entries, counting what became of them: `new`, `replaced` (an older one), `kept` (one as new is there)."""
    batch: list[Entry] = []
    for entry in new_entries:
        batch.append(entry)
        if len(batch) == BATCH:
            _put_batch(cache, batch, counts)
            batch = []
    _put_batch(cache, batch, counts)


def _put_batch(cache: diskcache.Cache, batch: list[Entry], counts: Counter[str]) -> None:
    with cache.transact(retry=True):
        for key, value in batch:
            old = cache.get(key, retry=True)
            if isinstance(old, Mapping) and time_of(old) >= time_of(value):
                counts["kept"] += 1
                continue
            counts["new" if old is None else "replaced"] += 1
            cache.set(key, value, retry=True)


def time_of(value: Mapping[str, Any]) -> float:
    """Seconds since 1970; 0 if it has none that can be read."""
    fetched_at = value.get("fetched_at", 0)
    is_time = isinstance(fetched_at, int | float) and not isinstance(fetched_at, bool) and 0 <= fetched_at < LAST_TIME
    return float(fetched_at) if is_time else 0.0


def read_entries(path: Path, counts: Counter[str]) -> Iterator[Entry]:
    """The entries of a file: one JSON object of query and text, or JSON lines of `ramet cache export`.

    `counts`: the omitted ones: `failures` (a search that had failed was stored), `too long` queries, and `unreadable`
    entries. Raises `ConfigError` for a file that is neither.
    """
    if not path.exists():
        raise ConfigError(f"{path}: there is no such file")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: {NO_ENTRIES}: {error}") from error
    whole = _object(text)
    if whole is not None and not {"key", "value"} <= set(whole):
        yield from _published(whole, path.stat().st_mtime, counts)
        return
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines or _object(lines[0]) is None:
        raise ConfigError(f"{path}: {NO_ENTRIES}")
    for line in lines:
        entry = _own(_object(line))
        if entry is None:
            counts["unreadable"] += 1
        else:
            yield entry


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _own(line: dict[str, Any] | None) -> Entry | None:
    if line is None or set(line) != {"key", "value"}:
        return None
    key, value = line["key"], line["value"]
    if not isinstance(key, str) or not _KEY.fullmatch(key) or not isinstance(value, dict):
        return None
    return (key, value) if _is_whole(value) else None


def _is_whole(value: Mapping[str, Any]) -> bool:
    """Whether it is a search, a page or a summary with everything that is read of one."""
    kind = kind_of(value)
    if kind == "search":
        try:
            read_stored(value)
        except ValueError:
            return False
        return math.isfinite(value["fetched_at"])
    texts = {"page": ("url", "title", "text"), "summary": ("summary",)}.get(kind, ())
    return bool(texts) and all(isinstance(value.get(name), str) for name in texts)


def _published(queries: Mapping[str, Any], fetched_at: float, counts: Counter[str]) -> Iterator[Entry]:
    for query, text in queries.items():
        items = published_items(text) if isinstance(text, str) else None
        if isinstance(text, str) and text.strip() in ("", NOTHING):
            counts["failures"] += 1
        elif len(normalised(query)) > MOST_CHARS:
            counts["too long"] += 1
        elif items is None or not normalised(query):
            counts["unreadable"] += 1
        else:
            result = SearchResult(items=items, provider=IMPORTED, fetched_at=fetched_at)
            yield imported_key(query), {"query": normalised(query), **result.stored()}


def published_items(text: str) -> tuple[SearchItem, ...] | None:
    """The excerpts of a text in the form `Page 1: …`; None if it has another one."""
    before, *rest = _PAGE.split(text)
    numbers, excerpts = rest[::2], rest[1::2]
    if before or not excerpts or [int(number) for number in numbers] != list(range(1, len(numbers) + 1)):
        return None
    return tuple(SearchItem(text=excerpt) for excerpt in excerpts)
