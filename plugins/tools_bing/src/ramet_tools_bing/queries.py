"""The model's queries, made fit for a provider and for the cache: one form for queries that mean the same."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from ramet import ToolError

MOST_CHARS = 400
VERSION = 1  # of keys and stored results: another one is another entry
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
_KANA_OR_HANGUL = re.compile("[\u3040-\u30ff\uac00-\ud7af]")


def normalised(query: str) -> str:
    """Unicode's composed form (NFC), without blanks around it, every run of blanks one space."""
    return " ".join(unicodedata.normalize("NFC", query).split())


def checked_query(query: object, tool: str) -> str:
    """The normalised query. Raises `ToolError`, whose text names the problem for the model."""
    if not isinstance(query, str):
        raise ToolError(f"{tool}: the query must be a text")
    query = normalised(query)
    if not query:
        raise ToolError(f"{tool}: the query is empty")
    if len(query) > MOST_CHARS:
        raise ToolError(f"{tool}: the query has {len(query)} characters; at most {MOST_CHARS} are allowed")
    if _CONTROL.search(query):
        raise ToolError(f"{tool}: the query has control characters")
    return query


def is_chinese(text: str) -> bool:
    """Whether a text has Chinese characters and none of Japanese or Korean."""
    return bool(_HAN.search(text)) and not _KANA_OR_HANGUL.search(text)


def cache_key(kind: str, fields: Mapping[str, Any]) -> str:
    """A key of the cache: the hash of everything that decides the answer."""
    text = json.dumps({"v": VERSION, "kind": kind, **fields}, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def search_key(provider: str, **fields: Any) -> str:
    """Return the key of a search's answer.

    `fields`: everything that decides it, the query included, without the provider.
    """
    return cache_key("search", {"provider": provider, **fields})


def options_in_words(**options: object) -> str:
    """Options of a recording, by their names in the configuration. An address is given without what may be secret."""
    if isinstance(url := options.get("url"), str):
        parts = urlsplit(url)
        options["url"] = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
    return " ".join(f"{name}={value}" for name, value in options.items() if value != "")


def imported_key(query: str) -> str:
    """Return the key of an entry imported from a cache of only queries, which have no quotation marks."""
    return cache_key("imported", {"query": normalised(query.replace('"', ""))})
