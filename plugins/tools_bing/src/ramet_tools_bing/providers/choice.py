"""The provider that a configuration names, or all of them where recorded answers are replayed, of any provider."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ramet_tools_bing.config import KEYS, STORED, SearchConfig, chosen_provider, key_of
from ramet_tools_bing.providers.base import FaultKind, Provider, ProviderError
from ramet_tools_bing.providers.brightdata import BrightData
from ramet_tools_bing.providers.offline import OfflineCorpus
from ramet_tools_bing.providers.services import Brave, HttpProvider, Retrieval, SearchService, Serper, Tavily
from ramet_tools_bing.results import SearchItem


def build_provider(config: SearchConfig) -> Provider:
    """Build the provider in the event loop that is going to use it. The configuration was checked."""
    name = chosen_provider(config)
    if name == "corpus":
        return OfflineCorpus(config.corpus)
    if name == STORED:
        return StoredAnswers([_asked(provider, config) for provider in KEYS])
    return _asked(name, config)


def _asked(name: str, config: SearchConfig) -> Provider:
    country = config.country.lower()
    if name == "brightdata":
        return BrightData(
            key=key_of(name, config.api_key) or "",
            zone=config.zone or os.environ.get("BRIGHTDATA_ZONE") or "serp_api1",
            country=country,
            parse=config.parse,
            url=config.url,
        )
    return HttpProvider(_service(name, config, country), country)


def _service(name: str, config: SearchConfig, country: str) -> SearchService:
    if name == "retrieval":
        return Retrieval(url=config.url or "")
    key, address = key_of(name, config.api_key), {} if config.url is None else {"url": config.url}
    if name == "serper":
        return Serper(key=key, country=country, **address)
    return Tavily(key=key, **address) if name == "tavily" else Brave(key=key, country=country, **address)


class StoredAnswers:
    """`Provider` of a replay: an answer is found whichever of these has given it. No server is asked."""

    name = STORED
    cached = True

    def __init__(self, providers: Sequence[Provider]) -> None:
        self._providers = providers

    def cache_keys(self, query: str, k: int) -> Sequence[str]:
        return [key for provider in self._providers for key in provider.cache_keys(query, k)]

    def options(self, k: int) -> Sequence[tuple[str, str]]:
        return [option for provider in self._providers for option in provider.options(k)]

    async def search(self, query: str, k: int, *, timeout_s: float) -> tuple[SearchItem, ...]:
        raise ProviderError(FaultKind.REFUSED, "only stored answers are given here")

    async def aclose(self) -> None:
        for provider in self._providers:
            await provider.aclose()
