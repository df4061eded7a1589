"""`ramet doctor` says who answers searches, whether they do, and whether the cache can be used."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from ramet import DoctorContext, Finding, Severity
from ramet_tools_bing import SearchConfig
from ramet_tools_bing.cache_commands import cache
from ramet_tools_bing.doctor import search_check


def checked(*configs: SearchConfig, offline: bool = False) -> dict[str, Finding]:
    options = {f"tools.search{n or ''}": config for n, config in enumerate(configs)}
    found = asyncio.run(search_check(DoctorContext(options=options, offline=offline)))
    return {finding.what: finding for finding in found}


def test_without_anything_the_sample_answers_and_how_to_change_that_is_said() -> None:
    found = checked()
    assert found["search provider"].severity is Severity.NOTE and "BRIGHTDATA_API_KEY" in (
        found["search provider"].fix or ""
    )
    assert found["search answer"].severity is Severity.OK and set(found) == {"search provider", "search answer"}


@pytest.mark.parametrize(
    ("behaviour", "severity", "text"),
    [
        ("good", Severity.OK, "2 results for 'capital of Australia'"),
        ("401", Severity.PROBLEM, "brightdata (zone serp_api1): 401 Unauthorized: invalid key"),
        ("html", Severity.PROBLEM, "brightdata (zone serp_api1) does not parse Bing's pages: it sends HTML"),
    ],
)
def test_a_service_is_asked_once(bing: Any, behaviour: str, severity: Severity, text: str) -> None:
    async def steps(tool: Any, server: Any) -> None:
        context = DoctorContext(options={"tools.web": bing.options(server.url)})
        provider, answer, cache = await search_check(context)
        assert provider.text == "brightdata, with the key of BRIGHTDATA_API_KEY"
        assert (answer.what, answer.severity, answer.text) == ("web answer", severity, text)
        assert cache.severity is Severity.OK and "key-3f8a1c77e2" not in repr((provider, answer, cache))

    bing.session(lambda query, n: behaviour, steps)


def test_what_helps_depends_on_who_does_not_answer() -> None:
    found = checked(SearchConfig(provider="retrieval", url="http://127.0.0.1:9/x", cache="off"))
    assert (found["search answer"].severity, found["search answer"].fix) == (
        Severity.PROBLEM,
        "look at tools.search.params.url, and whether the server runs",
    )


def test_offline_nobody_is_asked(bing: Any) -> None:
    found = checked(bing.options("http://127.0.0.1:9/"), offline=True)
    assert found["search answer"].severity is Severity.NOTE


def test_options_and_a_cache_that_cannot_be_used_are_problems(bing: Any, tmp_path: Path) -> None:
    bing.folder.mkdir(mode=0o700)
    (bing.folder / "cache.db").write_bytes(b"torn" * 1000)
    found = checked(SearchConfig(cache="no"), bing.options("http://127.0.0.1:9/"), offline=True)
    options = found["search options"]
    assert (options.text, options.fix) == ("tools.search.params.cache is 'no'", "allowed: rw, ro, refresh, off")
    assert found["search1 cache"].severity is Severity.PROBLEM
    assert found["search1 cache"].fix == f"`ramet cache check --repair --folder {bing.folder}`"


def test_what_to_do_about_an_option_is_beside_what_is_wrong() -> None:
    [(what, finding)] = checked(SearchConfig(corpus="nowhere")).items()
    assert (what, finding.what, finding.severity) == ("search options", "search options", Severity.PROBLEM)
    assert finding.text.startswith("tools.search.params.corpus is 'nowhere'")
    assert (finding.fix or "").startswith("`ramet corpus build FILE --out CORPUS`")


def test_a_replay_asks_nobody(tmp_path: Path) -> None:
    published, folder = tmp_path / "search_cache.json", str(tmp_path / "cache")
    published.write_text(json.dumps({"what": "Page 1: a lighthouse"}))
    assert cache(["import", str(published), "--folder", folder]) == 0
    found = checked(SearchConfig(cache="ro", provider="serper", cache_folder=folder))
    assert found["search provider"].text == "serper, which is not asked: tools.search.params.cache=ro replays"
    assert found["search answer"].text == "not asked for, since tools.search.params.cache=ro replays"
    found = checked(SearchConfig(cache="ro", cache_folder=folder))
    assert found["search provider"] == Finding(
        what="search provider",
        severity=Severity.OK,
        text="stored answers of: imported; no server is asked, since tools.search.params.cache=ro replays",
    )
    assert found["search answer"].severity is Severity.NOTE and found["search cache"].text == f"{folder}: 1 entries"
