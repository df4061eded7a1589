"""Pages as text: from the cache, or downloaded and extracted. What fails is not stored."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from aiohttp.abc import AbstractResolver

from ramet_tools_bing.cache import AnswerCache
from ramet_tools_bing.config import PageConfig
from ramet_tools_bing.fetch.download import Downloader
from ramet_tools_bing.fetch.extraction import PageExtractor, PageText
from ramet_tools_bing.queries import cache_key
from ramet_tools_bing.service import NotStoredError


class PageReader:
    """For one event loop."""

    def __init__(self, config: PageConfig, cache: AnswerCache, resolver: AbstractResolver | None = None) -> None:
        self.config = config
        self.cache = cache
        self.downloader = Downloader(config, resolver)
        self.extractor = PageExtractor(config.extractors)

    async def read(self, address: str) -> tuple[PageText, bool]:
        """The page, and whether it was stored. Raises `ToolError`, `InfraError`, `NotStoredError`."""
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
