"""Search results as the text that the model reads.

`release` is what ARPO's released search tool writes: excerpts alone, without repetitions, each cut. It shows neither
title nor address, so a page cannot be named or fetched; `default` shows both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ramet_tools_bing.results import SearchItem

NOTHING = "No search results found."
NOT_STORED = "This search was not recorded, and only recorded searches are answered here."
_BLANKS = str.maketrans({"\n": " ", "\r": " ", "\t": " "})


def release(items: Sequence[SearchItem], max_results: int, result_chars: int) -> str:
    texts = list(dict.fromkeys(text for item in items if (text := item.text.strip())))
    lines = [f"Page {number}: {text[:result_chars]}" for number, text in enumerate(texts[:max_results], start=1)]
    return "\n".join(lines) or NOTHING


def default(items: Sequence[SearchItem], max_results: int, result_chars: int) -> str:
    """One paragraph a hit: number and title, address, excerpt; what a hit lacks is left out."""
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
