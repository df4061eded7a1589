"""The offline corpus as a provider: nothing leaves the machine, and the same query has the same answer."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from ramet import ConfigError
from ramet_tools_bing.corpus import Corpus, memory_corpus
from ramet_tools_bing.providers.base import FaultKind, ProviderError
from ramet_tools_bing.queries import search_key
from ramet_tools_bing.results import SearchItem

THREADS = 2
SAMPLE = "(the sample of ramet-tools-bing)"


class AnyCorpus(Protocol):
    path: Path
    passages: int

    def search(self, query: str, k: int) -> list[SearchItem]: ...

    def close(self) -> None: ...


class OfflineCorpus:
    """`Provider`. Searches in threads, since SQLite blocks."""

    name = "corpus"
    cached = False

    def __init__(self, path: str | None) -> None:
        """Open the corpus; None: the sample of this package."""
        self._corpus = open_corpus(Path(path)) if path is not None else sample_corpus()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="ramet-corpus")

    @property
    def passages(self) -> int:
        return self._corpus.passages

    @property
    def path(self) -> Path:
        return self._corpus.path

    def cache_keys(self, query: str, k: int) -> Sequence[str]:
        """Return one key, under which nothing is stored: equal searches at the same time are one."""
        return [search_key(self.name, query=query, k=k, corpus=str(self._corpus.path))]

    def options(self, k: int) -> Sequence[tuple[str, str]]:
        return []

    async def search(self, query: str, k: int, *, timeout_s: float) -> tuple[SearchItem, ...]:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                return tuple(await loop.run_in_executor(self._threads, self._corpus.search, query, k))
        except TimeoutError as error:
            raise ProviderError(FaultKind.DOWN, f"the corpus did not answer within {timeout_s:.3g} s") from error
        except (sqlite3.Error, OSError, ValueError) as error:
            raise ProviderError(FaultKind.DOWN, f"the corpus {self._corpus.path}: {error}") from error

    async def aclose(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def open_corpus(path: Path) -> AnyCorpus:
    """Open the corpus at this path. Raises `ConfigError` without one."""
    if not path.exists():
        raise ConfigError(f"{path}: there is no corpus; `ramet corpus build FILE --out {path}` makes one")
    if path.is_dir():
        from ramet_tools_bing.corpus_tantivy import TantivyCorpus

        return TantivyCorpus(path)
    return Corpus(path)


def sample_corpus() -> Corpus:
    """The few passages that come with this package, so that the tool can be tried at once."""
    lines = (files("ramet_tools_bing") / "data" / "sample.jsonl").read_text(encoding="utf-8").splitlines()
    return memory_corpus((SearchItem(**json.loads(line)) for line in lines), SAMPLE)
