"""Options of the tools `search`, `fetch` and `deep_search`, and what is wrong with them."""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ramet import ConfigError, OpenAIOptions
from ramet_tools_bing.cache_entries import holds_answers

CACHE_MODES = ("rw", "ro", "refresh", "off")
FORMATS = ("default", "release")
PARSE_FORMS = ("auto", "brd_json", "parsed_bing")
WHEN_DOWN = ("wait", "mask")
KEYS = {  # provider -> the variable of its key, in the order in which `auto` looks for one
    "brightdata": "BRIGHTDATA_API_KEY",
    "serper": "SERPER_API_KEY",
    "tavily": "TAVILY_API_KEY",
    "brave": "BRAVE_API_KEY",
}
PROVIDERS = ("auto", *KEYS, "retrieval", "corpus")
PROBES = ("https://example.com/", "https://www.wikipedia.org/", "https://www.baidu.com/")
STORED = "stored"  # no provider that can be named: what `auto` means where only stored answers are given


@dataclass(kw_only=True)  # no slots: a class can inherit from only one class with slots
class CacheConfig:
    cache: str = "rw"  # rw; ro: replay, a miss is a fixed text; refresh: ask again and store; off
    cache_folder: str | None = None  # folder of the cache; null: ~/.cache/ramet/search, or below XDG_CACHE_HOME


@dataclass(kw_only=True, slots=True)
class SearchConfig(CacheConfig):
    """Search of the web, or of an offline corpus."""

    provider: str = "auto"  # auto: the one whose key is set (brightdata, serper, tavily, brave), else corpus
    api_key: str | None = field(
        default=None,
        repr=False,
        metadata={"help": "as ${oc.env:VARIABLE}; null: the provider's own variable, such as SERPER_API_KEY"},
    )
    corpus: str | None = None  # file or folder of `ramet corpus build`; null: the small sample of this package
    url: str | None = None  # address of a retrieval server, or another address of a provider's service
    zone: str | None = None  # Bright Data's zone; null: the variable BRIGHTDATA_ZONE, else serp_api1
    parse: str = "auto"  # Bright Data's form of parsed results: brd_json, parsed_bing; auto: tries both
    country: str = "us"  # country that results are for, two letters
    max_results: int = 10  # most results of one query
    result_chars: int = 1000  # most characters of one result's text; longer ones are cut
    format: str = "default"  # default: title, address and text; release: `Page 1: …` as the reference writes them
    per_s: float = 10.0  # most requests per second, of all workers of a run together
    concurrent: int = 16  # requests at the same time, of all workers of a run together
    request_timeout_s: float = 30.0  # time-out of one request, in seconds
    tries: int = 3  # attempts of one call, for failures that may pass
    when_down: str = "wait"  # while the provider is down: wait (outside slot and time-out), or mask the rollout
    down_s: float = 30.0  # seconds without requests after the provider was down


@dataclass(kw_only=True)
class PageConfig(CacheConfig):
    """Text of a web page."""

    page_timeout_s: float = 15.0  # time-out of one page with all its redirects, in seconds
    page_mb: float = 2.0  # most megabytes of one page; a larger one is an error
    page_chars: int = 20_000  # most characters of one page's text; longer ones are cut
    redirects: int = 3  # most redirects of one page
    extractors: int = 2  # processes that read HTML and PDF
    allow_private: list[str] = field(default_factory=list)  # private networks that may be read, such as 10.1.0.0/16
    probes: list[str] = field(
        default_factory=lambda: list(PROBES),
        metadata={"help": "addresses that are tried when no page is reached: is this machine's network down?"},
    )


@dataclass(kw_only=True, slots=True)
class DeepSearchConfig(SearchConfig, PageConfig):
    """Search whose result pages are read, and summarised if asked."""

    pages: int = 5  # results whose pages are read
    around_chars: int = 3000  # characters before and after the sentence that fits the result best
    summarize: bool = False  # summarise by a model on an OpenAI-compatible server; false: return the passages
    summary: OpenAIOptions = field(default_factory=OpenAIOptions)  # of that server
    summary_tokens: int = 1024  # most tokens of one summary
    summary_deadline_s: float = 120.0  # time limit of one summary with all attempts and waits, in seconds


def search_problems(config: SearchConfig, tool: str = "search") -> Iterator[str]:
    """Return everything that is wrong, as lines that name the key.

    After the first `; ` each says what to do about it.
    """
    yield from _one_of(
        config,
        tool,
        provider=PROVIDERS,
        cache=CACHE_MODES,
        format=FORMATS,
        parse=PARSE_FORMS,
        when_down=WHEN_DOWN,
    )
    yield from _over_0(
        config,
        tool,
        ("max_results", "result_chars", "per_s", "concurrent", "request_timeout_s", "tries", "down_s"),
    )
    if not (len(config.country) == 2 and config.country.isascii() and config.country.isalpha()):
        yield f"tools.{tool}.params.country is {config.country!r}; allowed: two letters, such as us"
    if config.provider in KEYS and config.cache != "ro" and not key_of(config.provider, config.api_key):
        yield (
            f"tools.{tool}.params.provider is {config.provider!r}, which needs a key; set the environment variable "
            f"{KEYS[config.provider]}, or tools.{tool}.params.api_key='${{oc.env:VARIABLE}}'"
        )
    if config.cache == "ro" and chosen_provider(config) != "corpus" and not holds_answers(folder_of(config)):
        yield (
            f"tools.{tool}.params.cache is 'ro', which replays stored answers, and {folder_of(config)} holds none; "
            "`ramet cache import FILE` stores published ones, a run with cache=rw its own; "
            f"tools.{tool}.params.cache_folder names another folder"
        )
    if config.provider == "retrieval" and config.url is None:
        yield (
            f"tools.{tool}.params.provider is 'retrieval', which needs a server; set tools.{tool}.params.url, its "
            "address, such as http://host:8000/retrieve"
        )
    if config.url is not None and not _is_url(config.url):
        yield f"tools.{tool}.params.url is {config.url!r}; allowed: an address that begins with http:// or https://"
    if config.corpus is not None and not Path(config.corpus).exists():
        yield (
            f"tools.{tool}.params.corpus is {config.corpus!r}, which does not exist (working directory {os.getcwd()}); "
            "`ramet corpus build FILE --out CORPUS` makes one"
        )
    if config.corpus is not None and config.provider not in ("auto", "corpus"):
        yield (
            f"tools.{tool}.params.corpus is set, and tools.{tool}.params.provider is {config.provider!r}; leave one of "
            "them out"
        )


def page_problems(config: PageConfig, tool: str = "fetch") -> Iterator[str]:
    yield from _one_of(config, tool, cache=CACHE_MODES)
    yield from _over_0(config, tool, ("page_timeout_s", "page_mb", "page_chars", "extractors"))
    if not 0 <= config.redirects < math.inf:
        yield f"tools.{tool}.params.redirects is {config.redirects}; allowed: 0 or more"
    for address in config.probes:
        if not _is_url(address):
            yield f"tools.{tool}.params.probes has {address!r}; allowed: addresses that begin with http:// or https://"
    for network in config.allow_private:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            yield f"tools.{tool}.params.allow_private has {network!r}; allowed: networks such as 10.1.0.0/16 ({error})"


def deep_problems(config: DeepSearchConfig, tool: str = "deep_search") -> Iterator[str]:
    yield from search_problems(config, tool)
    yield from (line for line in page_problems(config, tool) if f"tools.{tool}.params.cache is" not in line)
    yield from _over_0(config, tool, ("pages", "around_chars", "summary_tokens", "summary_deadline_s"))


def raise_problems(problems: Iterator[str]) -> None:
    """Raise one `ConfigError` with all of them, if there is any."""
    all_problems = list(problems)
    if all_problems:
        raise ConfigError("\n".join(all_problems))


def key_of(provider: str, configured: str | None) -> str | None:
    """The provider's key, from the configuration or its own variable. Empty ones do not count."""
    return configured or os.environ.get(KEYS[provider]) or None


def chosen_provider(config: SearchConfig) -> str:
    """Return the provider that answers. `STORED`: the one that answered when the answers were recorded."""
    if config.provider != "auto":
        return config.provider
    if config.corpus is not None:
        return "corpus"
    if config.url is not None:
        return "retrieval"
    if config.cache == "ro":
        return STORED
    return next((name for name in KEYS if os.environ.get(KEYS[name])), "corpus")


def folder_of(config: CacheConfig) -> Path:
    """Return the folder of the cache."""
    return Path(config.cache_folder) if config.cache_folder is not None else default_cache_folder()


def default_cache_folder() -> Path:
    """Return the folder of the user's cache, which all runs share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ramet" / "search"


def _one_of(config: object, tool: str, **allowed: tuple[str, ...]) -> Iterator[str]:
    for name, values in allowed.items():
        if getattr(config, name) not in values:
            yield f"tools.{tool}.params.{name} is {getattr(config, name)!r}; allowed: {', '.join(values)}"


def _over_0(config: object, tool: str, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        value = getattr(config, name)
        if not 0 < value < math.inf:
            allowed = "a finite number" if value > 0 else "more than 0"
            yield f"tools.{tool}.params.{name} is {value!r}; allowed: {allowed}"


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
