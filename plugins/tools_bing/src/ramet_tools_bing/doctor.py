"""Checks of `ramet doctor` for searching: the provider, whether it answers, and whether the cache can be used."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from ramet import ConfigError, DoctorContext, Finding, InfraError, Severity
from ramet_tools_bing.cache_disk import open_disk
from ramet_tools_bing.cache_entries import stored_providers
from ramet_tools_bing.config import (
    KEYS,
    STORED,
    DeepSearchConfig,
    SearchConfig,
    chosen_provider,
    deep_problems,
    folder_of,
    search_problems,
)

PROBE = "capital of Australia"  # one request, which a service may bill
PROBE_S = 20.0


async def search_check(context: DoctorContext) -> list[Finding]:
    """Check the options of every configured search, its provider, one request, and its cache."""
    findings: list[Finding] = []
    for key, config in context.configured(SearchConfig, "tools.search").items():
        tool = key.removeprefix("tools.")
        problems = (
            deep_problems(config, tool) if isinstance(config, DeepSearchConfig) else search_problems(config, tool)
        )
        wrong = [_wrong(tool, *problem.split("; ", 1)) for problem in problems]
        findings += wrong or [
            *_provider(tool, config),
            await _answer(tool, config, context.offline),
            *_cache(tool, config),
        ]
    return findings


def _wrong(tool: str, text: str, fix: str) -> Finding:
    return Finding(what=f"{tool} options", severity=Severity.PROBLEM, text=text, fix=fix)


def _provider(tool: str, config: SearchConfig) -> Iterator[Finding]:
    provider = chosen_provider(config)
    if provider == STORED:
        stored_names = ", ".join(sorted(stored_providers(folder_of(config)))) or "no search"
        text = f"stored answers of: {stored_names}; no server is asked, since tools.{tool}.params.cache=ro replays"
        yield Finding(what=f"{tool} provider", severity=Severity.OK, text=text)
    elif config.cache == "ro" and provider in KEYS:
        text = f"{provider}, which is not asked: tools.{tool}.params.cache=ro replays"
        yield Finding(what=f"{tool} provider", severity=Severity.OK, text=text)
    elif provider in KEYS:
        where = f"tools.{tool}.params.api_key" if config.api_key else KEYS[provider]
        yield Finding(what=f"{tool} provider", severity=Severity.OK, text=f"{provider}, with the key of {where}")
    elif provider == "corpus" and config.corpus is None:
        yield Finding(
            what=f"{tool} provider",
            severity=Severity.NOTE,
            text="the small sample of ramet-tools-bing: no key is set, and no corpus",
            fix=f"set {', '.join(KEYS.values())}, or tools.{tool}.params.corpus=FILE (`ramet corpus build`)",
        )
    else:
        text = f"{provider} {config.corpus or config.url}"
        yield Finding(what=f"{tool} provider", severity=Severity.OK, text=text)


async def _answer(tool: str, config: SearchConfig, offline: bool) -> Finding:
    """Search once, past the cache."""
    from ramet_tools_bing.providers.base import ProviderError
    from ramet_tools_bing.providers.choice import build_provider

    what = f"{tool} answer"
    if offline and chosen_provider(config) != "corpus":
        return Finding(what=what, severity=Severity.NOTE, text="not asked for, since this check is to be offline")
    if config.cache == "ro" and chosen_provider(config) != "corpus":
        text = f"not asked for, since tools.{tool}.params.cache=ro replays"
        return Finding(what=what, severity=Severity.NOTE, text=text)
    try:
        provider = build_provider(config)
        try:
            items = await provider.search(PROBE, config.max_results, timeout_s=PROBE_S)
        finally:
            await provider.aclose()
    except (ProviderError, ConfigError, InfraError) as error:
        fix = _fix(tool, config)
        return Finding(what=what, severity=Severity.PROBLEM, text=str(error), fix=fix)
    return Finding(what=what, severity=Severity.OK, text=f"{len(items)} results for {PROBE!r}")


def _fix(tool: str, config: SearchConfig) -> str:
    """Say what to do about a provider that did not answer."""
    provider, key = chosen_provider(config), f"tools.{tool}.params"
    if provider == "brightdata":
        return f"look at key, account and zone; {key}.parse names the form of results"
    if provider == "corpus":
        return f"look at {key}.corpus; `ramet corpus build` makes a new one"
    return f"look at {key}.url, and whether the server runs" if provider == "retrieval" else "look at key and account"


def _cache(tool: str, config: SearchConfig) -> Iterator[Finding]:
    if config.cache == "off" or chosen_provider(config) == "corpus":
        return
    folder = folder_of(config)
    if not folder.exists():
        yield Finding(what=f"{tool} cache", severity=Severity.OK, text=f"{folder} is made at the first search")
        return
    try:
        disk = open_disk(folder)
    except (ConfigError, sqlite3.Error, OSError) as error:
        fix = f"`ramet cache check --repair --folder {folder}`"
        yield Finding(what=f"{tool} cache", severity=Severity.PROBLEM, text=f"{folder}: {error}", fix=fix)
        return
    try:
        yield Finding(what=f"{tool} cache", severity=Severity.OK, text=f"{folder}: {len(disk) - 1} entries")
    finally:
        disk.close()
