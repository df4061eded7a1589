"""Pages as text: from the cache, or downloaded and extracted. What fails is not stored."""

from __future__ import annotations

import base64
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp.abc import AbstractResolver

from ramet import ToolError
from ramet.helpers import ProcessLost, ProcessPool
from ramet_tools_bing.cache import AnswerCache
from ramet_tools_bing.config import PageConfig
from ramet_tools_bing.fetch.download import Download, Downloader
from ramet_tools_bing.queries import cache_key
from ramet_tools_bing.service import NotStoredError

PAGE_S = 10.0  # for one page; more is a parser that hangs
GRACE_S = 2.0  # after which a process that has not ended itself is ended
PAGES = 500  # after which a process is replaced: parsers leak


class PageReader:
    """Reader of pages for one event loop."""

    def __init__(self, config: PageConfig, cache: AnswerCache, resolver: AbstractResolver | None = None) -> None:
        self.config = config
        self.cache = cache
        self.downloader = Downloader(config, resolver)
        self.extractor = PageExtractor(config.extractors)

    async def read(self, address: str) -> tuple[PageText, bool]:
        """Return the page and whether it was stored. Raises `ToolError`, `InfraError`, `NotStoredError`."""
        key = cache_key("page", {"url": address, "chars": self.config.page_chars})
        stored = _read_stored(self.cache.get(key))
        if stored is not None:
            return stored, True
        if self.cache.replays:
            raise NotStoredError(address)
        page = await self.extractor.text(await self.downloader.download(address), self.config.page_chars)
        value = {"url": page.url, "title": page.title, "text": page.text, "fetched_at": time.time()}
        await self.cache.put(key, value)
        return page, False

    async def aclose(self) -> None:
        await self.downloader.http.aclose()
        await self.extractor.pool.aclose()


def _read_stored(value: Any) -> PageText | None:
    if not isinstance(value, Mapping):
        return None
    texts = [text for name in ("url", "title", "text") if isinstance(text := value.get(name), str)]
    return PageText(url=texts[0], title=texts[1], text=texts[2]) if len(texts) == 3 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageText:
    """`url` is where the last redirect led."""

    url: str
    title: str
    text: str


class PageExtractor:
    """A pool of up to `size` processes, without an environment, that turn pages into text: parsers hang and crash."""

    def __init__(self, size: int, page_s: float = PAGE_S) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        self.page_s = page_s
        self.pool = ProcessPool(
            "ramet_tools_bing.fetch.extractor",
            size=size,
            deadline_s=page_s + GRACE_S,
            environment={"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin", "PYTHONPATH": path},  # no key is there to be read
            most_requests=PAGES,
        )

    async def text(self, page: Download, chars: int) -> PageText:
        """Extract the text. Raises `ToolError` for a page that cannot be read, `InfraError` if no process starts."""
        request = {
            "kind": page.kind, "url": page.url, "charset": page.charset, "chars": chars, "timeout_s": self.page_s,
            "body": base64.b64encode(page.body).decode("ascii"),
        }  # fmt: skip
        try:
            answer = await self.pool.ask(request)
        except ProcessLost:  # perhaps killed for another reason
            try:
                answer = await self.pool.ask(request)
            except ProcessLost as error:
                raise ToolError("the page has no text that can be read") from error
        if "error" in answer or not answer.get("text"):
            raise ToolError("the page has no text that can be read")
        return PageText(url=page.url, title=answer["title"], text=answer["text"])
