"""The cache on disk: only JSON is read or written, nothing is evicted, and modes do what they say."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import stat
import time
from pathlib import Path
from typing import Any

import diskcache
import pytest

from ramet import ConfigError, ToolError
from ramet_tools_bing import SearchTool
from ramet_tools_bing.cache import AnswerCache
from ramet_tools_bing.cache_commands import cache as cache_command
from ramet_tools_bing.cache_disk import FORMAT_KEY, ForeignKey, JSONTextDisk, open_disk
from ramet_tools_bing.config import KEYS, CacheConfig, SearchConfig
from ramet_tools_bing.corpus_commands import corpus as corpus_command
from ramet_tools_bing.providers.choice import build_provider
from ramet_tools_bing.queries import cache_key, imported_key
from ramet_tools_bing.results import NOT_STORED, SearchItem, SearchResult


class Planted:
    """What someone who can write the folder would put there."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def opened(folder: Path, **options: Any) -> AnswerCache:
    return AnswerCache(CacheConfig(cache_folder=str(folder), **options))


def put(cache: AnswerCache, key: str, value: Any) -> None:
    asyncio.run(cache.put(key, value))


def test_a_planted_pickle_is_refused_and_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, witness = tmp_path / "cache", tmp_path / "witness"
    open_disk(folder).close()
    with diskcache.Cache(str(folder)) as plain:  # pickles, as diskcache does by default
        plain.set("key", Planted(str(witness)))
        plain.set(("a", "pickled key"), "x")
    cache = opened(folder)
    with caplog.at_level("WARNING"):
        assert cache.get("key") is None
    assert not witness.exists()
    assert caplog.messages == [
        f"the cache in {folder} fails (ValueError: refusing a cache entry in mode 4): calls continue without it; "
        "`ramet cache check` says what is wrong"
    ]
    foreign = [key for key in open_disk(folder) if isinstance(key, ForeignKey)]
    assert len(foreign) == 1 and not witness.exists()


@pytest.mark.parametrize("name", ["../victim.json", "ab/../../victim.json", "{folder}/victim.json", "cache.db"])
def test_a_planted_name_leads_to_no_other_file(tmp_path: Path, name: str) -> None:
    """Neither to be read nor, when its entry is replaced, to be deleted."""
    folder, victim, key = tmp_path / "cache", tmp_path / "victim.json", "0" * 64
    victim.write_text('{"secret": 1}')
    open_disk(folder).set(key, {"n": 1})
    named = name.format(folder=tmp_path)
    with sqlite3.connect(folder / "cache.db") as database:
        database.execute("UPDATE Cache SET filename = ?, mode = 3, value = NULL WHERE key = ?", (named, key))
    database.close()
    with open_disk(folder) as disk:
        with pytest.raises(ValueError) as caught:
            disk.get(key)
        assert str(caught.value) == f"refusing a cache entry in the file {named!r}"
        disk.set(key, {"n": 2})
        assert disk.get(key) == {"n": 2} and victim.exists() and (folder / "cache.db").exists()


def test_large_values_have_files_of_their_own_and_leave_none(tmp_path: Path) -> None:
    with open_disk(tmp_path / "cache") as disk:
        for text in ("a" * 100_000, "b" * 100_000, "c"):
            disk.set("key", text)
            assert disk.get("key") == text
    assert not list((tmp_path / "cache").rglob("*.val"))


def test_no_pickle_is_written(tmp_path: Path) -> None:
    disk = open_disk(tmp_path)
    for value in ({1, 2}, object(), b"bytes", float("nan")):
        with pytest.raises((TypeError, ValueError)):
            disk.set("key", value)
    with pytest.raises(TypeError, match=r"^cache keys must be texts$"):
        disk.set(("a",), "x")
    assert list(disk.iterkeys()) == [FORMAT_KEY]


@pytest.mark.parametrize("text", ["\ud800 alone", "\x00", "字", "x" * 200_000, '"\\'])
def test_any_text_comes_back(tmp_path: Path, text: str) -> None:
    cache = opened(tmp_path)
    put(cache, cache_key("search", {"query": text}), {"text": text})
    assert cache.get(cache_key("search", {"query": text})) == {"text": text}


def test_settings_hold_whoever_opened_it_before(tmp_path: Path) -> None:
    with diskcache.Cache(str(tmp_path), disk=JSONTextDisk, size_limit=1 << 16, eviction_policy="least-recently-used"):
        pass
    disk = open_disk(tmp_path)
    for number in range(500):
        disk.set(f"key {number}", "x" * 1000)
    assert len(disk) == 501
    with sqlite3.connect(tmp_path / "cache.db") as connection:
        settings = dict(connection.execute("SELECT key, value FROM Settings"))
    assert (settings["eviction_policy"], settings["cull_limit"], settings["size_limit"]) == ("none", 0, 1 << 40)


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    folder.chmod(0o770)
    with pytest.raises(ConfigError) as caught:
        opened(folder).open()
    assert str(caught.value) == (
        f"{folder} can be written by other users (mode 770), who could put entries into the cache; "
        f"`chmod 700 {folder}` helps"
    )


def test_a_folder_that_it_makes_is_the_users_alone(tmp_path: Path) -> None:
    opened(tmp_path / "deep" / "cache").open()
    assert stat.S_IMODE((tmp_path / "deep" / "cache").stat().st_mode) == 0o700


def test_a_cache_of_another_format_is_refused(tmp_path: Path) -> None:
    open_disk(tmp_path).set(FORMAT_KEY, 99)
    with pytest.raises(ConfigError) as caught:
        opened(tmp_path).open()
    assert str(caught.value) == f"{tmp_path}: the cache has format 99; this version reads 1"


def test_keys_tell_apart_what_decides_the_answer() -> None:
    fields = {"provider": "brightdata", "query": "q", "country": "us"}
    keys = {cache_key("search", {**fields, name: f"{value} other"}) for name, value in fields.items()}
    assert len(keys | {cache_key("search", fields), cache_key("page", fields), imported_key("q")}) == 6
    assert imported_key('a  "b" c ') == imported_key("a b c")


def result(query: str, fetched_at: float) -> dict[str, Any]:
    items = (SearchItem(text=query),) if query else ()
    return SearchResult(items=items, provider="p", fetched_at=fetched_at).stored()


@pytest.mark.parametrize("shift_s", [-3600.0, 86_400.0 * 400])
def test_a_clock_that_jumps_empties_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shift_s: float) -> None:
    cache, now = opened(tmp_path), time.time()
    put(cache, "key", result("found", now))
    monkeypatch.setattr(time, "time", lambda: now + shift_s)
    found = cache.search_result(["key"], "q")
    assert found is not None and found.items[0].text == "found"


@pytest.mark.parametrize(
    "value",
    [[], "text", {}, {"items": [1], "provider": "p", "fetched_at": 1}, {"items": [], "provider": "p"},
     {"items": [{"text": 3}], "provider": "p", "fetched_at": 1}],
)  # fmt: skip
def test_an_entry_that_is_no_result_is_a_miss_and_counted(tmp_path: Path, value: Any) -> None:
    open_disk(tmp_path).set("key", value)
    cache = opened(tmp_path)
    assert cache.search_result(["key"], "q") is None and cache.counts.errors == 1


def test_modes_record_replay_refresh_and_leave_alone(bing: Any) -> None:
    """`asked` is what the server was asked for: nothing, where answers are replayed."""

    async def steps(tool: SearchTool, server: Any) -> None:
        async def ask(mode: str, query: str) -> tuple[Any, int]:
            before = server.total
            one = SearchTool(bing.options(server.url, cache=mode))
            found = await bing.call(one, query)
            await one.aclose()
            return found, server.total - before

        assert (await ask("rw", "a"))[1] == 1
        replayed, asked = await ask("ro", "a")
        assert asked == 0 and replayed.cached and replayed.text.startswith("[1] a 1")
        missing, asked = await ask("ro", "b")
        assert asked == 0 and missing.text == NOT_STORED and missing.metadata["stored"] is False
        assert (await ask("off", "a"))[1] == 1 and (await ask("off", "b"))[1] == 1
        assert (await ask("ro", "b"))[0].text == NOT_STORED
        assert (await ask("refresh", "b"))[1] == 1 and (await ask("refresh", "b"))[1] == 1
        assert (await ask("ro", "b"))[0].cached
        with pytest.raises(ToolError, match=f"^{NOT_STORED}$"):
            await SearchTool(bing.options(server.url, cache="ro")).search("c")

    bing.session(lambda query, n: "good", steps)


def test_a_full_disk_costs_the_cache_and_no_answer(bing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        await bing.call(tool, "before")

        def full(*_: Any, **__: Any) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(diskcache.Cache, "set", full)
        assert not (await bing.call(tool, "q")).cached and not (await bing.call(tool, "q")).cached
        assert (await bing.call(tool, "before")).cached
        assert tool.cache.counts.errors == 2

    bing.session(lambda query, n: "good", steps)


def test_a_broken_database_costs_the_cache_and_no_answer(bing: Any, caplog: pytest.LogCaptureFixture) -> None:
    bing.folder.mkdir(mode=0o700)
    (bing.folder / "cache.db").write_bytes(b"no database" * 1000)

    async def steps(tool: SearchTool, server: Any) -> None:
        assert (await bing.call(tool, "q")).text.startswith("[1] q 1")

    with caplog.at_level("WARNING"):
        bing.session(lambda query, n: "good", steps)
    assert sum("calls continue without it" in line for line in caplog.messages) == 1
    assert (bing.folder / "cache.db").read_bytes().startswith(b"no database")


def test_what_is_stored_names_its_query_and_holds_no_key(bing: Any) -> None:
    async def steps(tool: SearchTool, server: Any) -> None:
        await bing.call(tool, "  who \n is it ")

    bing.session(lambda query, n: "good", steps)
    with sqlite3.connect(bing.folder / "cache.db") as connection:
        rows = dict(connection.execute("SELECT key, value FROM Cache"))
    [value] = [json.loads(value) for key, value in rows.items() if key != FORMAT_KEY]
    assert value["query"] == "who is it" and value["provider"] == "brightdata"
    assert b"key-3f8a1c77e2" not in b"".join(file.read_bytes() for file in bing.folder.rglob("*") if file.is_file())


def test_a_replay_needs_neither_key_nor_provider(bing: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of a service, and imported ones: found whoever gave them, and whatever keys are set."""
    published = tmp_path / "search_cache.json"
    published.write_text(json.dumps({"what": "Page 1: a lighthouse"}))
    assert cache_command(["import", str(published), "--folder", str(bing.folder)]) == 0

    async def steps(tool: SearchTool, server: Any) -> None:
        await bing.call(tool, "q")

    bing.session(lambda query, n: "good", steps)
    for keys in ([], ["SERPER_API_KEY"]):
        for name in KEYS.values():
            monkeypatch.delenv(name, raising=False)
        for name in keys:
            monkeypatch.setenv(name, "k")
        replay = SearchTool(SearchConfig(cache="ro", cache_folder=str(bing.folder)))
        assert asyncio.run(replay.search("what")).items == (SearchItem(text="a lighthouse"),)
        assert asyncio.run(replay.search("q")).provider == "brightdata"
        assert asyncio.run(bing.call(replay, "other")).text == NOT_STORED
        for provider in KEYS:
            named = SearchTool(SearchConfig(cache="ro", cache_folder=str(bing.folder), provider=provider))
            assert asyncio.run(named.search("what")).provider == "imported"


def recorded(folder: Path, query: str) -> None:
    """An answer of a retrieval server with these options."""
    provider = build_provider(recording(folder))
    result = SearchResult(items=(SearchItem(text="a lighthouse"),), provider="retrieval", fetched_at=1.0)
    value = {"query": query, "options": provider.options(2)[0][1], **result.stored()}
    open_disk(folder).set(provider.cache_keys(query, 2)[0], value)


def recording(folder: Path, **options: Any) -> SearchConfig:
    url = "http://me:secret@host:8000/retrieve?key=secret"
    options = {"provider": "retrieval", "url": url, "max_results": 2, **options}
    return SearchConfig(cache="ro", cache_folder=str(folder), **options)


def test_a_replay_without_the_options_of_the_recording_says_once_which_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cache"
    recorded(folder, "q")
    known = "retrieval max_results=2 country=us url=http://host:8000/retrieve"
    for options in ({"max_results": 3}, {"provider": "auto", "url": None}):
        caplog.clear()

        async def twice(tool: SearchTool) -> None:
            for _ in range(2):
                with pytest.raises(ToolError, match=f"^{NOT_STORED}$"):
                    await tool.search("q")
            await tool.aclose()

        asyncio.run(twice(SearchTool(recording(folder, **options))))
        assert [line for line in caplog.messages if "recorded with" in line] == [
            f"search: no answer in {folder} was recorded with these options, and only stored answers are given. It "
            f"has answers of provider={known}: set tools.search.params to that"
        ]
    caplog.clear()
    same = SearchTool(recording(folder))
    assert asyncio.run(same.search("q")).provider == "retrieval"
    with pytest.raises(ToolError, match=f"^{NOT_STORED}$"):
        asyncio.run(same.search("another"))
    assert not [line for line in caplog.messages if "recorded with" in line]
    assert cache_command(["stats", "--folder", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert (
        "  retrieval (max_results=2 country=us url=http://host:8000/retrieve): 1\n" in shown and "secret" not in shown
    )


def test_a_replay_of_nothing_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "none"
    for provider in ("auto", "serper"):
        with pytest.raises(ConfigError) as caught:
            SearchTool(SearchConfig(cache="ro", cache_folder=str(folder), provider=provider))
        assert str(caught.value) == (
            f"tools.search.params.cache is 'ro', which replays stored answers, and {folder} holds none; `ramet cache "
            "import FILE` stores published ones, a run with cache=rw its own; tools.search.params.cache_folder names "
            "another folder"
        )


@pytest.mark.parametrize(
    ("command", "arguments", "problem"),
    [
        (cache_command, ["stats", "mycache"], "unrecognized arguments: mycache; see `ramet cache stats --help`"),
        (corpus_command, ["info", "a", "b", "c"], "unrecognized arguments: b c; see `ramet corpus info --help`"),
    ],
)
def test_an_argument_too_many_names_the_help_of_its_command(command: Any, arguments: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        command(arguments)
    assert str(caught.value) == problem
