"""An offline corpus in a folder of tantivy's, some ten times faster than SQLite's. Needs ramet-tools-bing[tantivy].

The same passages, words and ranking function (BM25) as `ramet_tools_bing.corpus`; scores and ties differ in detail.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ramet import ConfigError
from ramet_tools_bing.corpus import TITLE_WEIGHT, query_terms, spaced, unique
from ramet_tools_bing.results import SearchItem

FORMAT = "ramet-corpus-tantivy-1"
ABOUT = "ramet.json"


class TantivyCorpus:
    """Open for reading, by any number of threads at once."""

    def __init__(self, path: Path) -> None:
        """Open a corpus. Raises `ConfigError` for another folder, and without tantivy."""
        tantivy = _tantivy()
        self.path = path
        try:
            about = json.loads((path / ABOUT).read_text(encoding="ascii"))
            self._index = tantivy.Index.open(str(path / "index"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} is not a corpus of `ramet corpus build --engine tantivy`: {error}") from error
        if about.get("format") != FORMAT:
            raise ConfigError(f"{path} has the format {about.get('format')!r}; this version reads {FORMAT!r}")
        self.passages = int(about["passages"])
        self._searcher = self._index.searcher()

    def search(self, query: str, k: int) -> list[SearchItem]:
        terms = query_terms(query)
        if not terms:
            return []
        parsed = self._index.parse_query(" OR ".join(terms), ["title", "words"], {"title": TITLE_WEIGHT})
        hits = self._searcher.search(parsed, k).hits
        return [_item(self._searcher.doc(address)) for _, address in hits]

    def close(self) -> None:
        """Do nothing: the index is a map of its files."""


def build_tantivy_corpus(passages: Iterable[SearchItem], folder: Path) -> int:
    """Write a new folder with every passage once, and return how many."""
    tantivy = _tantivy()
    (folder / "index").mkdir(parents=True)
    schema = tantivy.SchemaBuilder()
    for name in ("title", "words"):
        schema.add_text_field(name, stored=False, tokenizer_name="en_stem")
    schema.add_text_field("passage", stored=True, tokenizer_name="raw", index_option="basic")
    writer = tantivy.Index(schema.build(), path=str(folder / "index")).writer(num_threads=1)
    count = 0
    for passage in unique(passages):
        count += 1
        title, words = spaced((passage.title, passage.text))
        stored = json.dumps([passage.title, passage.url, passage.text])
        writer.add_document(tantivy.Document(title=title, words=words, passage=stored))
    writer.commit()
    writer.wait_merging_threads()
    (folder / ABOUT).write_text(json.dumps({"format": FORMAT, "passages": count}), encoding="ascii")
    return count


def _item(document: Any) -> SearchItem:
    title, url, text = json.loads(document["passage"][0])
    return SearchItem(title=title, url=url, text=text)


def check_installed() -> None:
    """Raises `ConfigError`."""
    _tantivy()


def _tantivy() -> Any:
    try:
        import tantivy
    except ImportError as error:
        raise ConfigError("a corpus of tantivy needs `pip install ramet-tools-bing[tantivy]`") from error
    return tantivy
