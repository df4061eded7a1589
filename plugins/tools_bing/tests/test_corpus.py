"""The offline corpus: what is found, in which languages, and what is built of what."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from ramet import ConfigError
from ramet_tools_bing import SearchConfig, SearchTool
from ramet_tools_bing.cache_commands import cache
from ramet_tools_bing.corpus import Corpus, build_corpus, query_terms
from ramet_tools_bing.corpus_commands import corpus
from ramet_tools_bing.providers.offline import open_corpus
from ramet_tools_bing.results import SearchItem

PASSAGES = [
    SearchItem(title="Ottawa", url="http://o/", text="Ottawa is the capital of Canada."),
    SearchItem(title="Canberra", text="Canberra is the capital of Australia."),
    SearchItem(title="", text="北京大学创建于1898年。"),
    SearchItem(title="", text="北海道の首都は札幌です。"),
    SearchItem(title="Running", text="She runs every morning."),
]
ENGINES = ["sqlite", "tantivy"]


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(params=ENGINES)
def built(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "tantivy":
        pytest.importorskip("tantivy")
    rows = [{"title": one.title, "url": one.url, "text": one.text} for one in PASSAGES]
    source = written(tmp_path / "p.jsonl", [*rows, rows[0]])
    assert corpus(["build", str(source), "--out", str(tmp_path / "corpus"), "--engine", request.param]) == 0
    return open_corpus(tmp_path / "corpus")


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("What is the capital of Canada?", 0),
        ("CANBERRA", 1),
        ("北京大学哪年创建", 2),
        ("札幌", 3),
        ("runs running run", 4),
        ('capital AND "Canada" NOT OR NEAR( * ^ : {x}', 0),
    ],
)
def test_the_best_passage_comes_first(built: Any, query: str, best: int) -> None:
    assert built.passages == len(PASSAGES)
    assert built.search(query, 3)[0] == PASSAGES[best]


@pytest.mark.parametrize("query", ["", "?!", "zebra", "\x00", '"', "the of"])
def test_a_query_without_words_or_hits_finds_nothing(built: Any, query: str) -> None:
    found = built.search(query, 3)
    assert found == [] or query == "the of"


def test_frequent_words_are_left_out_unless_there_are_no_others() -> None:
    assert query_terms("Who was the first man?") == ['"first"', '"man"']
    assert query_terms("to be or not to be") == ['"to"', '"be"', '"or"', '"not"']
    assert query_terms("长城 Great") == ['"长 城"', '"great"']
    assert len(query_terms(" ".join(map(str, range(100))))) == 32


def test_equal_passages_in_another_order_give_equal_hits(tmp_path: Path) -> None:
    shuffled = PASSAGES[:]
    random.Random(1).shuffle(shuffled)
    found = []
    for number, passages in enumerate((PASSAGES, shuffled)):
        build_corpus(passages, tmp_path / str(number))
        found.append(Corpus(tmp_path / str(number)).search("capital of Australia", 1))
    assert found[0] == found[1]


def test_every_bad_row_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    rows = [{"text": "good"}, "{", [1], {"title": "no text"}, {"text": " "}, {"text": "x", "title": 3}]
    source, out = written(tmp_path / "p.jsonl", rows), tmp_path / "corpus"
    with pytest.raises(ConfigError) as caught:
        corpus(["build", str(source), "--out", str(out)])
    no_json, *others = str(caught.value).splitlines()
    assert no_json.startswith(f"{source}:2: not JSON: ")
    assert others == [
        f"{source}:3: not a JSON object: [1]",
        f"{source}:4: no text under text or contents or content or passage (it has title)",
        f"{source}:5: no text under text or contents or content or passage (it has text)",
        f"{source}:6: title and url must be texts, got 3 and ''",
        "--skip-bad-rows leaves such rows out",
    ]
    assert not out.exists()


def test_bad_rows_can_be_left_out_and_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = written(tmp_path / "p.jsonl", [{"text": "good"}, "{"]), tmp_path / "corpus"
    assert corpus(["build", str(source), "--out", str(out), "--skip-bad-rows"]) == 0
    assert capsys.readouterr().out == f"{out}: 1 passages, 1 bad rows left out\n"


def test_half_a_surrogate_pair_is_a_bad_row_and_in_a_cache_a_question_mark(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "corpus.db"
    source.write_text('{"text": "\\ud800 odd"}\n')
    with pytest.raises(ConfigError) as caught:
        corpus(["build", str(source), "--out", str(out)])
    assert str(caught.value).splitlines()[0] == f"{source}:1: text with half a surrogate pair"
    value = {"items": [{"text": "\ud800 odd"}], "provider": "p", "fetched_at": 1}
    source.write_text(json.dumps({"key": "0" * 64, "value": value}) + "\n")
    assert corpus(["build", str(source), "--out", str(out)]) == 0
    assert [item.text for item in Corpus(out).search("odd", 1)] == ["? odd"]


def test_sources_without_passages_make_no_corpus(tmp_path: Path) -> None:
    source, out = tmp_path / "rows.jsonl", tmp_path / "corpus.db"
    source.write_text("")
    with pytest.raises(ConfigError) as caught:
        corpus(["build", str(source), "--out", str(out)])
    assert str(caught.value) == f"{source}: found no passage" and not out.exists()


def test_the_form_of_search_r1_is_read(tmp_path: Path) -> None:
    source = written(tmp_path / "wiki.jsonl", [{"id": "7", "contents": '"Ottawa"\nOttawa is a city.'}])
    corpus(["build", str(source), "--out", str(tmp_path / "corpus")])
    assert Corpus(tmp_path / "corpus").search("city", 1) == [SearchItem(title="Ottawa", text="Ottawa is a city.")]


def test_what_is_there_is_replaced_only_if_asked_and_only_if_it_is_a_corpus(tmp_path: Path) -> None:
    source, out, notes = written(tmp_path / "p.jsonl", [{"text": "good"}]), tmp_path / "corpus", tmp_path / "notes.txt"
    corpus(["build", str(source), "--out", str(out)])
    with pytest.raises(ConfigError) as caught:
        corpus(["build", str(source), "--out", str(out)])
    assert str(caught.value) == f"{out} exists; --replace makes it again, or name another file"
    corpus(["build", str(source), "--out", str(out), "--replace"])
    notes.write_text("mine")
    with pytest.raises(ConfigError) as caught:
        corpus(["build", str(source), "--out", str(notes), "--replace"])
    assert str(caught.value) == (
        f"{notes} is not a corpus of `ramet corpus build`: file is not a database; `ramet corpus build {notes} --out "
        "CORPUS` makes one, if it is a file of passages"
    )
    assert notes.read_text() == "mine"


def test_a_cache_becomes_a_corpus_in_each_of_its_forms(tmp_path: Path) -> None:
    published = tmp_path / "search_cache.json"
    published.write_text(
        json.dumps({"q": "Page 1: Ottawa is a city\nPage 2: so is Bern", "r": "No search results found."})
    )
    folder, exported = tmp_path / "cache", tmp_path / "export.jsonl"
    cache(["import", str(published), "--folder", str(folder)])
    cache(["export", str(exported), "--folder", str(folder)])
    for number, source in enumerate((published, folder, exported)):
        out = tmp_path / f"corpus{number}"
        corpus(["build", str(source), "--out", str(out)])
        assert Corpus(out).search("Bern", 5) == [SearchItem(text="so is Bern")]


def test_a_missing_source_and_a_missing_corpus_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        corpus(["build", str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "c")])
    assert str(caught.value) == f"{tmp_path / 'a'}: there is no such file\n{tmp_path / 'b'}: there is no such file"
    with pytest.raises(ConfigError) as caught:
        corpus(["search", str(tmp_path / "c"), "query"])
    assert str(caught.value) == (
        f"{tmp_path / 'c'}: there is no corpus; `ramet corpus build FILE --out {tmp_path / 'c'}` makes one"
    )


def test_the_commands_print_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_corpus(PASSAGES, tmp_path / "corpus")
    assert (
        corpus(["info", str(tmp_path / "corpus")]) == 0 and corpus(["search", str(tmp_path / "corpus"), "Ottawa"]) == 0
    )
    info, *found = capsys.readouterr().out.splitlines()
    assert info.startswith(f"{tmp_path / 'corpus'}: 5 passages, 0.0 MB")
    assert found == ["[1] Ottawa", "http://o/", "Ottawa is the capital of Canada."]


def test_permuting_texts_over_titles_changes_what_a_query_finds(tmp_path: Path) -> None:
    """What a model is told depends on the corpus, so a trained model's accuracy falls when it is permuted."""
    turned = [
        SearchItem(title=a.title, url=a.url, text=b.text)
        for a, b in zip(PASSAGES, PASSAGES[1:] + PASSAGES[:1], strict=True)
    ]
    build_corpus(turned, tmp_path / "corpus")
    assert Corpus(tmp_path / "corpus").search("Ottawa", 1)[0].text == "Canberra is the capital of Australia."


def test_many_calls_at_once_are_answered_each_with_its_own(tmp_path: Path) -> None:
    numbers = [SearchItem(title=f"n{n}", text=f"the secret of n{n} is s{n}") for n in range(300)]
    build_corpus(numbers, tmp_path / "corpus")

    async def main() -> list[Any]:
        tool = SearchTool(SearchConfig(corpus=str(tmp_path / "corpus")))
        found = await asyncio.gather(*(tool.search(f"secret of n{n}", 1) for n in range(256)))
        await tool.aclose()
        return found

    assert [one.items[0].text for one in asyncio.run(main())] == [f"the secret of n{n} is s{n}" for n in range(256)]
