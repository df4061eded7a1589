"""The results of a search, from any provider, and the text that the model reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

NOTHING = "No search results found."
NOT_STORED = "This search was not recorded, and only recorded searches are answered here."
_BLANKS = str.maketrans({"\n": " ", "\r": " ", "\t": " "})


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
        """Return the form in the cache."""
        return {
            "provider": self.provider,
            "fetched_at": self.fetched_at,
            "items": [asdict(item) for item in self.items],
        }


def read_stored(value: object) -> SearchResult:
    """Read a result of the cache. Raises `ValueError` otherwise."""
    if not isinstance(value, Mapping) or not isinstance(value.get("items"), list):
        raise ValueError("not a stored search result")
    fetched_at, provider = value.get("fetched_at"), value.get("provider")
    if isinstance(fetched_at, bool) or not isinstance(fetched_at, int | float) or not isinstance(provider, str):
        raise ValueError("a stored search result without provider or time")
    items = tuple(_read_item(item) for item in value["items"])
    return SearchResult(items=items, provider=provider, fetched_at=float(fetched_at), cached=True)


def _read_item(value: object) -> SearchItem:
    if not isinstance(value, Mapping) or not set(value) <= {"title", "url", "text"}:
        raise ValueError("a stored search result with an item that is not a result")
    if not all(isinstance(text, str) for text in value.values()):
        raise ValueError("a stored search result with an item that is not a text")
    return SearchItem(**value)


def release(items: Sequence[SearchItem], max_results: int, result_chars: int) -> str:
    """Write what ARPO's released search tool writes: only excerpts, without repetitions, each cut.

    It shows neither title nor address, so a page cannot be named or fetched; `default` shows both.
    """
    texts = list(dict.fromkeys(text for item in items if (text := item.text.strip())))
    lines = [f"Page {number}: {text[:result_chars]}" for number, text in enumerate(texts[:max_results], start=1)]
    return "\n".join(lines) or NOTHING


def default(items: Sequence[SearchItem], max_results: int, result_chars: int) -> str:
    """Write a paragraph for each hit: number and title, address, excerpt; missing parts of a hit are left out."""
    seen: set[SearchItem] = set()
    blocks: list[str] = []
    for item in items:
        if item in seen or not (item.title.strip() or item.text.strip()):
            continue
        seen.add(item)
        blocks.append(_block(len(blocks) + 1, item, result_chars))
    return "\n\n".join(blocks[:max_results]) or NOTHING


def _block(number: int, item: SearchItem, result_chars: int) -> str:
    title = item.title.strip().translate(_BLANKS)[:200]
    lines = [title, item.url.translate(_BLANKS)[:500], item.text.strip()[:result_chars]]
    return f"[{number}] " + "\n".join(line for line in lines if line)


FORMATS: dict[str, Callable[[Sequence[SearchItem], int, int], str]] = {"default": default, "release": release}
