"""What a search returns, of any provider: items, and where and when they were found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchItem:
    """One hit. `text` is the provider's excerpt; title and address may be empty."""

    title: str = ""
    url: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """All hits of one query, best first. `fetched_at`: seconds since 1970, when the provider answered."""

    items: tuple[SearchItem, ...]
    provider: str
    fetched_at: float = 0.0
    cached: bool = False

    def stored(self) -> dict[str, Any]:
        """As the cache holds it."""
        return {
            "provider": self.provider,
            "fetched_at": self.fetched_at,
            "items": [asdict(item) for item in self.items],
        }


def read_stored(value: object) -> SearchResult:
    """A result of the cache. Raises `ValueError` if it is none."""
    if not isinstance(value, Mapping) or not isinstance(value.get("items"), list):
        raise ValueError("not a stored search result")
    fetched_at, provider = value.get("fetched_at"), value.get("provider")
    if isinstance(fetched_at, bool) or not isinstance(fetched_at, int | float) or not isinstance(provider, str):
        raise ValueError("a stored search result without provider or time")
    items = tuple(_read_item(item) for item in value["items"])
    return SearchResult(items=items, provider=provider, fetched_at=float(fetched_at), cached=True)


def _read_item(value: object) -> SearchItem:
    if not isinstance(value, Mapping) or not set(value) <= {"title", "url", "text"}:
        raise ValueError("a stored search result with an item that is none")
    if not all(isinstance(text, str) for text in value.values()):
        raise ValueError("a stored search result with an item that is no text")
    return SearchItem(**value)
