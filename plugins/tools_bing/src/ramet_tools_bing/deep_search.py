"""The tool `deep_search`: search, read the pages, find the passages, and summarise them.

This is the flow of ARPO's evaluation, where it answers under the tag `search` (`tools.search.use=deep_search`). A page
that cannot be read leaves its excerpt; without a model for summaries the passages themselves are the result.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, replace

from ramet import Services, ToolCall, ToolError, ToolResult
from ramet.helpers import PerLoop
from ramet_tools_bing.config import DeepSearchConfig, deep_problems, raise_problems
from ramet_tools_bing.fetch.pages import PageReader
from ramet_tools_bing.queries import checked_query
from ramet_tools_bing.results import NOT_STORED, NOTHING, SearchItem, SearchResult
from ramet_tools_bing.service import NotStoredError
from ramet_tools_bing.summary import QuotedPage, Summarizer
from ramet_tools_bing.tool import DEADLINE_S, MARGIN_S, SCHEMA, SearchTool

DEEP_SCHEMA = replace(
    SCHEMA,
    name="deep_search",
    description="Searches the web, reads the best pages, and returns what in them helps.",
)

LEAST_F1 = 0.2
_SENTENCE = re.compile(r"[^.!?。！？\n]*(?:[.!?。！？]+|\n|$)")
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af]|[^\W_]+")
_TAG = re.compile(r"</?(?:b|strong|em)>", re.IGNORECASE)


@dataclass(slots=True)
class _Readers:
    pages: PageReader
    summarizer: Summarizer | None

    async def aclose(self) -> None:
        await self.pages.aclose()
        if self.summarizer is not None:
            await self.summarizer.aclose()


class DeepSearchTool:
    """Connects at the first call; may be made before any event loop runs, and pickled."""

    schema = DEEP_SCHEMA

    def __init__(self, config: DeepSearchConfig | None = None) -> None:
        self.config = config or DeepSearchConfig()
        raise_problems(deep_problems(self.config))
        self.searcher = SearchTool(self.config)
        self._readers = PerLoop(self._connected)

    def __reduce__(self) -> tuple[type[DeepSearchTool], tuple[DeepSearchConfig]]:
        return DeepSearchTool, (self.config,)

    def _connected(self) -> _Readers:
        summarizer = Summarizer(self.config, self.searcher.cache) if self.config.summarize else None
        return _Readers(PageReader(self.config, self.searcher.cache), summarizer)

    @property
    def pages(self) -> PageReader:
        """Return the reader of this event loop."""
        return self._readers.get().pages

    async def start(self, services: Services) -> None:
        await self.searcher.start(services)
        summarizer = self._readers.get().summarizer
        if summarizer is not None:
            await summarizer.start(services)

    async def __call__(self, call: ToolCall) -> ToolResult:
        query = checked_query(call.arguments.get("query"), call.name)
        question = call.task.question if call.task is not None else ""
        ends_at = time.monotonic() + max(1.0, (call.deadline_s or DEADLINE_S) - MARGIN_S)
        try:
            text, result = await self._researched(query, question, ends_at)
        except NotStoredError:
            return ToolResult(text=NOT_STORED, metadata={"provider": self.searcher.provider, "stored": False})
        metadata = {"provider": result.provider, "results": len(result.items), "cached": result.cached}
        return ToolResult(text=text, metadata=metadata)

    async def _researched(self, query: str, question: str, ends_at: float) -> tuple[str, SearchResult]:
        seconds_left = ends_at - time.monotonic()
        asked = self.searcher.asked(query)
        result = await self.searcher.client().search(asked, self.config.max_results, deadline_s=seconds_left)
        hits = result.items[: self.config.pages]
        if not hits:
            return NOTHING, result
        pages = await asyncio.gather(*(self._read(hit) for hit in hits))
        summarizer = self._readers.get().summarizer
        if summarizer is None:
            return "\n\n".join(_shown(number, page) for number, page in enumerate(pages, start=1)), result
        deadline_s = max(1.0, min(self.config.summary_deadline_s, ends_at - time.monotonic()))
        return await summarizer.summarize(query, question, pages, deadline_s=deadline_s), result

    async def _read(self, hit: SearchItem) -> QuotedPage:
        """The passage around the hit's excerpt. A page that cannot be read is its excerpt."""
        if not hit.url:
            return QuotedPage(title=hit.title, url="", text=hit.text)
        try:
            page, _ = await self.pages.read(hit.url)
        except (ToolError, NotStoredError):
            return QuotedPage(title=hit.title, url=hit.url, text=hit.text)
        text = best_passage(page.text, hit.text, self.config.around_chars)
        return QuotedPage(title=hit.title or page.title, url=hit.url, text=text)

    async def aclose(self) -> None:
        await self._readers.aclose()
        await self.searcher.aclose()


def _shown(number: int, page: QuotedPage) -> str:
    head = "\n".join(part for part in (f"[{number}] {page.title}".rstrip(), page.url) if part)
    return f"{head}\n{page.text}"


def words(text: str) -> frozenset[str]:
    """Return the words in lower case; characters of languages without blanks are separate words."""
    return frozenset(_WORD.findall(text.lower()))


def f1(first: frozenset[str], second: frozenset[str]) -> float:
    common = len(first & second)
    return 2 * common / (len(first) + len(second)) if common else 0.0


def best_passage(page: str, excerpt: str, around_chars: int) -> str:
    """Return the passage that the excerpt was taken from with its surroundings, about `2 * around_chars` characters.

    As in the evaluation of ARPO: the sentence whose words overlap most with the excerpt's (F1 of the two sets, more
    than 0.2), with so many characters before and after it. Without one, the beginning of the page.
    """
    target = words(_TAG.sub("", excerpt))
    best, place = LEAST_F1, None
    for sentence in _SENTENCE.finditer(page):
        score = f1(words(sentence[0]), target) if sentence[0].strip() else 0.0
        if score > best:
            best, place = score, sentence.span()
    if place is None:
        return page[: 2 * around_chars]
    return page[max(0, place[0] - around_chars) : place[1] + around_chars]
