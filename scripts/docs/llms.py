"""`llms.txt`: the site's index for language models (https://llmstxt.org), from the navigation."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any


def index_text(entries: Iterable[Any], title: str, summary: str, *, markdown: Container[str]) -> str:
    """Return the index of a navigation, as mkdocs.yml has it.

    A link leads to the Markdown of its page if that is in `markdown`, otherwise to its HTML.
    """
    lines = [f"# {title}", "", f"> {summary}"]
    for entry in entries:
        ((name, inside),) = entry.items()
        listed = [entry] if isinstance(inside, str) else inside
        lines += ["", f"## {name}", "", *(f"- [{text}]({_place(uri, markdown)})" for text, uri in _pages(listed))]
    return "\n".join(lines) + "\n"


def _pages(entries: Iterable[Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Yield the title and the place of every page."""
    for entry in entries:
        if isinstance(entry, str):
            yield f"{within}: {Path(entry).stem}", entry
            continue
        ((name, inside),) = entry.items()
        if isinstance(inside, str):
            yield name, inside
        else:
            yield from _pages(inside, within=name)


def _place(uri: str, markdown: Container[str]) -> str:
    return uri if uri in markdown else f"{uri.removesuffix('.md')}.html"
