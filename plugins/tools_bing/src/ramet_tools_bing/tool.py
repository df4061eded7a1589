"""The tool `search`: a query in, results out. It reports the provider, and keeps paid answers."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from ramet import ConfigError, InfraError, Limiter, Services, ToolCall, ToolError, ToolResult, ToolSchema, local_limiter
from ramet.helpers import PerLoop
from ramet_tools_bing.cache import AnswerCache
from ramet_tools_bing.config import KEYS, STORED, SearchConfig, chosen_provider, raise_problems, search_problems
from ramet_tools_bing.providers.choice import build_provider
from ramet_tools_bing.providers.offline import OfflineCorpus
from ramet_tools_bing.queries import checked_query
from ramet_tools_bing.results import FORMATS, NOT_STORED, SearchResult
from ramet_tools_bing.service import NotStoredError, SearchClient

logger = logging.getLogger("ramet.tools.search")  # among Ramet's own, so that who answers is shown at the start
MARGIN_S = 0.5  # of a call's time, for everything but requests
DEADLINE_S = 60.0  # of a call that has none

SCHEMA = ToolSchema(
    name="search",
    description="Searches the web and returns the best results.",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string", "description": "what to search for"}},
        "required": ["query"],
    },
)


class SearchTool:
    """Connects at the first call; may be made before any event loop runs, and pickled. Works without a run too:
    `await SearchTool().search("…")`.
    """

    schema = SCHEMA

    def __init__(self, config: SearchConfig | None = None) -> None:
        self.config = config or SearchConfig()
        raise_problems(search_problems(self.config))
        self.cache = AnswerCache(self.config)
        self._limiter: Limiter | None = None
        self._client = PerLoop(self._connected)

    def __reduce__(self) -> tuple[type[SearchTool], tuple[SearchConfig]]:
        return SearchTool, (self.config,)

    @property
    def provider(self) -> str:
        """The provider."""
        return chosen_provider(self.config)

    async def start(self, services: Services) -> None:
        """Take the limits of the run. Raises `ConfigError` if the cache or the corpus cannot be used."""
        limits = f"search:{self.provider}"
        self._limiter = services.limiter(limits, self.config.per_s, self.config.concurrent)
        self.client()
        if self.provider == "corpus" and self.config.corpus is None:
            logger.warning(
                "search: the sample of ramet-tools-bing answers, which is there to be looked at and not to train on: "
                "set the variable of a service's key (%s), or tools.search.params.corpus=FILE (`ramet corpus build`)",
                ", ".join(KEYS.values()),
            )

    def client(self) -> SearchClient:
        """Return the client of this event loop."""
        return self._client.get()

    def _connected(self) -> SearchClient:
        try:
            provider = build_provider(self.config)
        except ConfigError as error:
            raise ConfigError(f"tools.*.params.corpus: {error}") from error
        if provider.cached:
            self.cache.open()
        self._announce(provider)
        limiter = self._limiter or local_limiter(self.config.per_s, self.config.concurrent)
        return SearchClient(self.config, provider, self.cache, limiter)

    def _announce(self, provider: object) -> None:
        if isinstance(provider, OfflineCorpus):
            logger.info("search: answered by the offline corpus %s, %d passages", provider.path, provider.passages)
            return
        stored = "nothing is stored" if self.config.cache == "off" else f"cache {self.config.cache} {self.cache.folder}"
        who = "what is stored, of any provider" if self.provider == STORED else self.provider
        logger.info("search: answered by %s; %s", who, stored)

    async def __call__(self, call: ToolCall) -> ToolResult:
        query = checked_query(_argument(call, "query"), call.name)
        started = time.monotonic()
        deadline_s = max(1.0, (call.deadline_s or DEADLINE_S) - MARGIN_S)
        try:
            result = await self.client().search(self.asked(query), self.config.max_results, deadline_s=deadline_s)
        except NotStoredError:
            return ToolResult(text=NOT_STORED, metadata={"provider": self.provider, "stored": False})
        return ToolResult(text=self.text(result), cached=result.cached, metadata=self._metadata(result, started))

    def asked(self, query: str) -> str:
        """The released tool leaves quotation marks out, and so does the preset that is named after it."""
        return " ".join(query.replace('"', "").split()) or query if self.config.format == "release" else query

    def text(self, result: SearchResult) -> str:
        """Write a result as the model reads it."""
        return FORMATS[self.config.format](result.items, self.config.max_results, self.config.result_chars)

    def _metadata(self, result: SearchResult, started: float) -> dict[str, Any]:
        return {
            "provider": result.provider,
            "results": min(len(result.items), self.config.max_results),
            "search_ms": round(1000 * (time.monotonic() - started), 1),
        }

    async def search(self, query: str, k: int | None = None, *, deadline_s: float = DEADLINE_S) -> SearchResult:
        """Search without a run: waits as long as the provider asks, within the deadline.

        Raises `ToolError` for an invalid query, `InfraError` without an answer in time.
        """
        query, ends_at = self.asked(checked_query(query, "search")), time.monotonic() + deadline_s
        while True:
            seconds_left = ends_at - time.monotonic()
            try:
                return await self.client().search(query, k or self.config.max_results, deadline_s=seconds_left)
            except NotStoredError as error:
                raise ToolError(NOT_STORED) from error
            except InfraError as error:
                if error.retry_after_s is None or error.retry_after_s >= ends_at - time.monotonic():
                    raise
                await asyncio.sleep(error.retry_after_s)

    async def aclose(self) -> None:
        await self._client.aclose()
        self.cache.close()


def _argument(call: ToolCall, name: str) -> Any:
    if set(call.arguments) != {name}:
        raise ToolError(f"{call.name} takes one argument, {name}, a text")
    return call.arguments[name]
