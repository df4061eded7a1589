"""The provider that a configuration names."""

from __future__ import annotations

import os

from ramet_tools_bing.config import SearchConfig, chosen_provider, key_of
from ramet_tools_bing.providers.base import Provider
from ramet_tools_bing.providers.brightdata import BrightData
from ramet_tools_bing.providers.offline import OfflineCorpus
from ramet_tools_bing.providers.services import Brave, HttpProvider, Retrieval, SearchService, Serper, Tavily


def build_provider(config: SearchConfig) -> Provider:
    """For the event loop that is going to use it. The configuration was checked."""
    name, country = chosen_provider(config), config.country.lower()
    if name == "corpus":
        return OfflineCorpus(config.corpus)
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
