"""An offline corpus: passages in one SQLite file, found by words (FTS5 with its BM25 ranking).

Chinese, Japanese and Korean are written without blanks, and FTS5 takes a run of letters for one word. So their
characters are indexed one by one, and a query asks for every two neighbours as a phrase. The passages themselves are
stored as they came.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from ramet import ConfigError
from ramet_tools_bing.results import SearchItem

FORMAT = "ramet-corpus-1"
TITLE_WEIGHT = 2.0  # a word of the title counts as two of the text
MOST_TERMS = 32  # of a query
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
_TERM = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_ONE_CJK = re.compile(rf"([{_CJK}])")
STOP_WORDS = frozenset(
    (
        "a about after all also an and any are as at be been but by can did do does for from had has have he her "
        "him his how i if in into is it its may me more most my no not of on one or our she so some than that the "
        "their them then there these they this those to was we were what when where which who whom whose why will "
        "with would you your "
    ).split()
)


def query_terms(query: str) -> list[str]:
    """Return the FTS5 phrases of a query, in order and each once: without the most frequent words, unless all are."""
    words: list[str] = []
    for term in _TERM.findall(query.lower()):
        if _ONE_CJK.match(term):
            words += [" ".join(term[i : i + 2]) for i in range(max(1, len(term) - 1))]
        else:
            words.append(term)
    words = list(dict.fromkeys(words))
    kept = [word for word in words if word not in STOP_WORDS] or words
    return [f'"{word}"' for word in kept[:MOST_TERMS]]


class Corpus:
    """A corpus that is open for reading, by any number of threads at once."""

    def __init__(self, path: Path, in_memory: sqlite3.Connection | None = None) -> None:
        """Open a corpus. Raises `ConfigError` for another file. `in_memory` has what the file would have."""
        self.path = path
        self._in_memory = in_memory
        self._local = threading.local()
        self.passages = self._check()

    def _check(self) -> int:
        """Return how many passages it has. Raises `ConfigError`."""
        try:
            about = dict(self._connection().execute("SELECT name, value FROM about").fetchall())
        except sqlite3.Error as error:
            raise ConfigError(
                f"{self.path} is not a corpus of `ramet corpus build`: {error}; `ramet corpus build {self.path} --out "
                "CORPUS` makes one, if it is a file of passages"
            ) from error
        if about.get("format") != FORMAT:
            raise ConfigError(f"{self.path} has the format {about.get('format')!r}; this version reads {FORMAT!r}")
        return int(about["passages"])

    def _connection(self) -> sqlite3.Connection:
        """Return the connection of this thread and process."""
        if self._in_memory is not None:
            return self._in_memory
        opened: tuple[int, sqlite3.Connection] | None = getattr(self._local, "opened", None)
        if opened is None or opened[0] != os.getpid():
            uri = f"file:{quote(str(self.path.absolute()))}?mode=ro"
            opened = self._local.opened = os.getpid(), sqlite3.connect(uri, uri=True)
        return opened[1]

    def search(self, query: str, k: int) -> list[SearchItem]:
        """Return the best `k` passages; equal ones in the order in which they were added."""
        terms = query_terms(query)
        if not terms:
            return []
        rows = self._connection().execute(
            "SELECT p.title, p.url, p.text FROM words JOIN passage p ON p.id = words.rowid WHERE words MATCH ? "
            f"ORDER BY bm25(words, {TITLE_WEIGHT}, 1.0), p.id LIMIT ?",
            (" OR ".join(terms), k),
        )
        return [SearchItem(title=title, url=url, text=text) for title, url, text in rows]

    def close(self) -> None:
        """Close this thread's connection."""
        opened: tuple[int, sqlite3.Connection] | None = getattr(self._local, "opened", None)
        if opened is not None:
            opened[1].close()
            del self._local.opened


def memory_corpus(passages: Iterable[SearchItem], name: str) -> Corpus:
    """Make a corpus that is in no file. All threads share its connection, which SQLite serialises."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    fill(connection, passages)
    return Corpus(Path(name), connection)


def build_corpus(passages: Iterable[SearchItem], path: Path) -> int:
    """Write a new file with every passage once, and return how many.

    The old file is intact until the new one is complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with _new_file(temporary) as connection:
            count = fill(connection, passages)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


@contextmanager
def _new_file(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = OFF")  # the file is new: a failure deletes it
        yield connection
    finally:
        connection.close()
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fill(connection: sqlite3.Connection, passages: Iterable[SearchItem]) -> int:
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT)")
    connection.execute("CREATE TABLE passage (id INTEGER PRIMARY KEY, title TEXT, url TEXT, text TEXT)")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5(title, text, content='', tokenize='porter unicode61')")
    count = 0
    for passage in unique(passages):
        count += 1
        connection.execute("INSERT INTO passage VALUES (?, ?, ?, ?)", (count, passage.title, passage.url, passage.text))
        connection.execute(
            "INSERT INTO words (rowid, title, text) VALUES (?, ?, ?)", (count, *spaced((passage.title, passage.text)))
        )
    connection.execute("INSERT INTO words (words) VALUES ('optimize')")
    connection.executemany("INSERT INTO about VALUES (?, ?)", [("format", FORMAT), ("passages", str(count))])
    connection.execute("COMMIT")
    return count


def unique(passages: Iterable[SearchItem]) -> Iterator[SearchItem]:
    """Yield each passage once, as the first that had its title and text; empty ones not at all."""
    seen: set[bytes] = set()
    for passage in passages:
        digest = hashlib.sha256(f"{passage.title}\0{passage.text}".encode("utf-8", "surrogatepass")).digest()
        if passage.text.strip() and digest not in seen:
            seen.add(digest)
            yield passage


def spaced(texts: Sequence[str]) -> list[str]:
    """Return texts whose characters of languages without blanks are separate words."""
    return [_ONE_CJK.sub(r" \1 ", text) for text in texts]
