"""The tool `search`: what the model is told, who answers, and what may be asked."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from ramet import ConfigError, InfraError, ToolCall, ToolError
from ramet.testing import local_services
from ramet_tools_bing import DeepSearchConfig, PageConfig, SearchConfig, SearchTool
from ramet_tools_bing.cache_commands import cache
from ramet_tools_bing.config import deep_problems, page_problems, search_problems
from ramet_tools_bing.corpus import build_corpus
from ramet_tools_bing.providers.brightdata import BrightData
from ramet_tools_bing.results import NOTHING, SearchItem, default, release

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "search_cache.json"
GOLDEN = Path(__file__).resolve().parents[3] / "tests" / "golden" / "values" / "tools.jsonl"


def call(tool: SearchTool, query: Any, **arguments: Any) -> Any:
    async def main() -> Any:
        try:
            return await tool(ToolCall(name="search", arguments={"query": query, **arguments}))
        finally:
            await tool.aclose()

    return asyncio.run(main())


def test_it_answers_at_once_without_key_and_says_who_does(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        found = call(SearchTool(), "What is the capital of Australia?")
    assert found.text.startswith("[1] Canberra\nCanberra is the capital of Australia.")
    assert found.metadata["provider"] == "corpus" and not found.error
    assert caplog.messages == ["search: answered by the offline corpus (the sample of ramet-tools-bing), 47 passages"]
    assert caplog.records[0].name.startswith("ramet.")  # whose news a run shows


def test_a_run_that_searches_the_sample_is_warned(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async def start(config: SearchConfig) -> None:
        tool = SearchTool(config)
        with local_services() as services:
            await tool.start(services)
        await tool.aclose()

    build_corpus([SearchItem(text="a lamp")], tmp_path / "corpus")
    asyncio.run(start(SearchConfig(corpus=str(tmp_path / "corpus"))))
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    asyncio.run(start(SearchConfig()))
    assert [one.message for one in caplog.records if one.levelno >= logging.WARNING] == [
        "search: the sample of ramet-tools-bing answers, which is there to be looked at and not to train on: set the "
        "variable of a service's key (BRIGHTDATA_API_KEY, SERPER_API_KEY, TAVILY_API_KEY, BRAVE_API_KEY), or "
        "tools.search.params.corpus=FILE (`ramet corpus build`)"
    ]


@pytest.mark.parametrize(
    ("variables", "options", "provider"),
    [
        ({}, {}, "corpus"),
        ({"BRAVE_API_KEY": "k", "SERPER_API_KEY": "k"}, {}, "serper"),
        ({"BRIGHTDATA_API_KEY": "k", "SERPER_API_KEY": "k"}, {}, "brightdata"),
        ({"SERPER_API_KEY": ""}, {}, "corpus"),
        ({"SERPER_API_KEY": "k"}, {"provider": "corpus"}, "corpus"),
        ({}, {"url": "http://host/retrieve"}, "retrieval"),
    ],
)
def test_who_answers_is_whose_key_is_set(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], options: dict[str, Any], provider: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert SearchTool(SearchConfig(**options)).provider == provider


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "search: the query is empty"),
        (" \n\t ", "search: the query is empty"),
        ("x" * 401, "search: the query has 401 characters; at most 400 are allowed"),
        ("a\x00b", "search: the query has control characters"),
        ("a\x1b[2Jb", "search: the query has control characters"),
        ("a\ud800b", "search: the query has control characters"),
        (3, "search: the query must be a text"),
    ],
)
def test_a_query_that_cannot_be_is_the_models_mistake(query: Any, said: str) -> None:
    with pytest.raises(ToolError) as caught:
        call(SearchTool(), query)
    assert str(caught.value) == said


def test_an_argument_that_is_not_known_is_the_models_mistake() -> None:
    with pytest.raises(ToolError, match=r"^search takes one argument, query, a text$"):
        call(SearchTool(), "q", pages=3)


def test_it_can_be_pickled_and_used_in_one_loop_after_the_other() -> None:
    tool = pickle.loads(pickle.dumps(SearchTool(SearchConfig(max_results=1))))
    assert [call(tool, "tungsten").metadata["results"] for _ in range(2)] == [1, 1]


ITEMS = [
    SearchItem(title="A\nlong title", url="http://a/", text=" one "),
    SearchItem(title="B", text="one"),
    SearchItem(url="http://c/", text="two " * 10),
    SearchItem(title="", text="  "),
]


def test_the_default_format_shows_title_address_and_text() -> None:
    assert default(ITEMS, 10, 7) == "[1] A long title\nhttp://a/\none\n\n[2] B\none\n\n[3] http://c/\ntwo two"
    assert default(ITEMS, 1, 100) == "[1] A long title\nhttp://a/\none"
    assert default([], 3, 3) == NOTHING


def test_the_released_format_shows_excerpts_alone() -> None:
    assert release(ITEMS, 10, 7) == "Page 1: one\nPage 2: two two"


def golden(function: str) -> list[dict[str, Any]]:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["function"].startswith(function)]


def test_the_released_format_agrees_with_the_reference() -> None:
    rows = golden("search_tool.format(max_results=3,result_length=20)")
    for row in rows:
        items = [SearchItem(text=hit.get("description", "")) for hit in row["input"].get("organic", [])]
        assert release(items, 3, 20) == row["output"]
    assert len(rows) == 5


def test_requests_agree_with_the_reference() -> None:
    rows = golden("search_tool.request(")
    for row in rows:
        tool = BrightData(key="K", zone="Z", country="cn")
        asked = SearchTool(SearchConfig(format="release")).asked(row["input"]["query"])
        request = tool.request(asked, "brd_json")
        assert (request.url, request.json) == (row["output"]["url"], row["output"]["json"])
    assert len(rows) == 5


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="needs ../shared/data/search_cache.json")
def test_the_published_cache_is_imported_and_its_entries_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, folder = PUBLISHED, tmp_path / "cache"
    assert cache(["import", str(source), "--folder", str(folder)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{source}: 996 new, ") and said.endswith(", 4 stored failures left out\n")
    published = json.loads(source.read_text(encoding="utf-8"))
    config = SearchConfig(
        provider="serper",
        api_key="k",
        url="http://127.0.0.1:1/",
        cache="ro",
        cache_folder=str(folder),
        format="release",
    )

    async def main() -> int:
        tool, same = SearchTool(config), 0
        for query, text in published.items():
            if text != NOTHING:
                found = await tool(ToolCall(name="search", arguments={"query": query}))
                assert found.cached
                same += found.text == text
        await tool.aclose()
        return same

    assert asyncio.run(main()) == 996


def test_an_own_result_comes_before_an_imported_one(bing: Any, tmp_path: Path) -> None:
    published = tmp_path / "search_cache.json"
    published.write_text(json.dumps({"q": "Page 1: old", "r": "Page 1: old too"}))
    cache(["import", str(published), "--folder", str(bing.folder)])

    async def steps(tool: SearchTool, server: Any) -> None:
        fresh = SearchTool(bing.options(server.url, cache="refresh"))
        await bing.call(fresh, "q")
        await fresh.aclose()
        assert (await bing.call(tool, "q")).text.startswith("[1] q 1")
        assert (await bing.call(tool, "r")).text == "[1] old too"

    bing.session(lambda query, n: "good", steps)


def test_limits_are_those_of_the_run(bing: Any) -> None:
    """Two tools of one run, as two workers have them: at most 3 requests at the same time, at 20 per second."""

    async def steps(_: SearchTool, server: Any) -> None:
        with local_services() as services:
            tools = [SearchTool(bing.options(server.url, per_s=20.0, concurrent=3)) for _ in range(2)]
            for tool in tools:
                await tool.start(services)
            loop = asyncio.get_running_loop()
            started = loop.time()
            await asyncio.gather(*(tools[n % 2].search(f"q{n}") for n in range(20)))
            assert loop.time() - started >= 19 / 20 - 0.15 and server.most_running <= 3
            for tool in tools:
                await tool.aclose()

    bing.session(lambda query, n: "good", steps)


def test_a_call_with_more_time_does_not_fail_with_an_equal_one_that_has_less(bing: Any) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        short = asyncio.create_task(bing.call(tool, "q", 1.0))
        await asyncio.sleep(0.1)
        longer = [asyncio.create_task(bing.call(tool, "q")) for _ in range(3)]
        with pytest.raises(InfraError, match=r"no reply within 1 s$"):
            await short
        assert {(await one).text.partition("\n")[0] for one in longer} == {"[1] q 1"}
        assert server.requests == {"q": 2}  # those that have more time share one

    bing.session(lambda query, n: "30 s" if n == 1 else "good", steps)


def test_a_call_with_less_time_than_an_equal_one_waits_no_longer_than_its_own(bing: Any) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        longer = asyncio.create_task(bing.call(tool, "q"))
        await asyncio.sleep(0.1)
        with pytest.raises(InfraError) as caught:
            await bing.call(tool, "q", 1.0)
        assert str(caught.value) == "an equal search that was begun before has not been answered in time"
        assert not longer.done() and server.requests == {"q": 1}
        longer.cancel()
        await asyncio.wait([longer])

    bing.session(lambda query, n: "30 s", steps)


def test_without_a_run_a_search_waits_as_it_is_asked_and_no_longer_than_its_deadline(bing: Any) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        assert (await tool.search("q", deadline_s=10)).items
        with pytest.raises(InfraError, match="429 Too Many"):
            await tool.search("never", deadline_s=2)
        assert server.requests == {"q": 2, "never": 2}

    bing.session(lambda query, n: "429 after 1" if query == "never" or n == 1 else "good", steps)


def test_everything_wrong_with_the_options_is_said_at_once() -> None:
    config = SearchConfig(
        provider="serper",
        cache="rx",
        format="html",
        per_s=0,
        country="germany",
        url="ftp://x",
        corpus="nowhere",
        tries=0,
    )
    with pytest.raises(ConfigError) as caught:
        SearchTool(config)
    assert str(caught.value).splitlines() == [
        "tools.search.params.cache is 'rx'; allowed: rw, ro, refresh, off",
        "tools.search.params.format is 'html'; allowed: default, release",
        "tools.search.params.per_s is 0; allowed: more than 0",
        "tools.search.params.tries is 0; allowed: more than 0",
        "tools.search.params.country is 'germany'; allowed: two letters, such as us",
        "tools.search.params.provider is 'serper', which needs a key; set the environment variable SERPER_API_KEY, or "
        "tools.search.params.api_key='${oc.env:VARIABLE}'",
        "tools.search.params.url is 'ftp://x'; allowed: an address that begins with http:// or https://",
        "tools.search.params.corpus is 'nowhere', which does not exist (working directory "
        f"{Path.cwd()}); `ramet corpus build FILE --out CORPUS` makes one",
        "tools.search.params.corpus is set, and tools.search.params.provider is 'serper'; leave one of them out",
    ]
    assert list(search_problems(SearchConfig(provider="retrieval"))) == [
        "tools.search.params.provider is 'retrieval', which needs a server; set tools.search.params.url, its address, "
        "such as http://host:8000/retrieve"
    ]
    assert list(page_problems(PageConfig(page_mb=0, redirects=-1, allow_private=["10.0.0.0/33"]))) == [
        "tools.fetch.params.page_mb is 0; allowed: more than 0",
        "tools.fetch.params.redirects is -1; allowed: 0 or more",
        "tools.fetch.params.allow_private has '10.0.0.0/33'; allowed: networks such as 10.1.0.0/16 ('10.0.0.0/33' does "
        "not appear to be an IPv4 or IPv6 network)",
    ]
    assert list(deep_problems(DeepSearchConfig(cache="no", summary_tokens=0, pages=0))) == [
        "tools.deep_search.params.cache is 'no'; allowed: rw, ro, refresh, off",
        "tools.deep_search.params.pages is 0; allowed: more than 0",
        "tools.deep_search.params.summary_tokens is 0; allowed: more than 0",
    ]


def numbers(kind: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind) if type(field.default) in (int, float)]


@pytest.mark.parametrize(("value", "allowed"), [(math.nan, "more than 0"), (math.inf, "a finite number")])
def test_numbers_are_finite(value: float, allowed: str) -> None:
    names = numbers(DeepSearchConfig)  # which has all options of the three tools
    assert {*numbers(SearchConfig), *numbers(PageConfig)} < set(names)
    found = list(deep_problems(DeepSearchConfig(**dict.fromkeys(names, value))))
    zero = f"tools.deep_search.params.redirects is {value}; allowed: 0 or more"
    others = [
        f"tools.deep_search.params.{name} is {value}; allowed: {allowed}" for name in names if name != "redirects"
    ]
    assert sorted(found) == sorted([*others, zero])


def test_a_corpus_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("no database")
    tool = SearchTool(SearchConfig(corpus=str(tmp_path / "notes")))

    async def main() -> None:
        with local_services() as services:
            await tool.start(services)

    with pytest.raises(ConfigError, match=rf"^tools\.\*\.params\.corpus: {tmp_path}/notes is not a corpus"):
        asyncio.run(main())


def test_no_key_is_in_logs_errors_metadata_or_pickles_of_the_default(
    bing: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        caplog.set_level(logging.DEBUG)
        found = await bing.call(tool, "q")
        with pytest.raises(InfraError) as caught:
            await bing.call(tool, "bad")
        said = [repr(found), str(caught.value), repr(tool.config), caplog.text, repr(pickle.dumps(tool))]
        assert server.authorizations == {"Bearer key-3f8a1c77e2"} and "key-3f8a1c77e2" not in "".join(said)

    bing.session(lambda query, n: "500" if query == "bad" else "good", steps)
