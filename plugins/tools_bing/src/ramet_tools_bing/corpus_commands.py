"""`ramet corpus`: build an offline corpus for the tool `search`, and try it."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ramet import ConfigError
from ramet_tools_bing.arguments import Arguments
from ramet_tools_bing.cache_disk import open_disk
from ramet_tools_bing.cache_entries import DATABASE, entries, kind_of, read_entries
from ramet_tools_bing.corpus import build_corpus
from ramet_tools_bing.results import SearchItem, default, read_stored

MOST_PROBLEMS = 20  # that are printed
TEXTS = ("text", "contents", "content", "passage")  # names of a passage's text in JSON lines
URLS = ("url", "link")


def corpus(arguments: Sequence[str]) -> int:
    """build an offline corpus for the tool search, and try it"""
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(prog="ramet corpus", description=corpus.__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="make a corpus of files", description=_build.__doc__)
    build.add_argument("sources", nargs="+", type=Path, metavar="FILE")
    build.add_argument("--out", type=Path, required=True, help="the corpus: a file, or a folder with --engine tantivy")
    build.add_argument("--engine", choices=("sqlite", "tantivy"), default="sqlite", help="(default: %(default)s)")
    build.add_argument("--replace", action="store_true", help="a corpus that is there already")
    build.add_argument(
        "--skip-bad-rows", action="store_true", help="leave rows out that cannot be read, and count them"
    )
    build.set_defaults(run=_build, parser=build)
    search = commands.add_parser("search", help="print what a query finds", description="print what a query finds")
    search.add_argument("corpus", type=Path)
    search.add_argument("query")
    search.add_argument("--results", type=_at_least_1, default=5, help="how many (default: %(default)s)")
    search.set_defaults(run=_search, parser=search)
    info = commands.add_parser("info", help="what a corpus has", description="what a corpus has")
    info.add_argument("corpus", type=Path)
    info.set_defaults(run=_info, parser=info)
    return parser


def _at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: 1 or more")
    return int(text)


def _build(options: argparse.Namespace) -> int:
    """Make a corpus of JSON lines (an object with `text` or `contents`, and perhaps `title` and `url`), of a published
    search_cache.json, of what `ramet cache export` wrote, or of a cache's folder. Equal passages are taken once."""
    _check_out(options)
    counts, problems = Counter[str](), list[str]()
    # Before anything is written: all problems at once.
    passages = sum(1 for path in options.sources for _ in _passages(path, counts, problems))
    if problems and not options.skip_bad_rows:
        more = f"\n… and {len(problems) - MOST_PROBLEMS} more" if len(problems) > MOST_PROBLEMS else ""
        raise ConfigError("\n".join(problems[:MOST_PROBLEMS]) + more + "\n--skip-bad-rows leaves such rows out")
    if not passages:
        raise ConfigError(f"{', '.join(map(str, options.sources))}: found no passage")
    items = (item for path in options.sources for item in _passages(path, Counter[str](), []))
    count = _built(options, items)
    left_out = f", {len(problems)} bad rows left out" if problems else ""
    failures = f", {counts['failures']} stored failures left out" if counts["failures"] else ""
    print(f"{options.out}: {count} passages{left_out}{failures}")
    return 0


def _check_out(options: argparse.Namespace) -> None:
    missing = [f"{path}: there is no such file" for path in options.sources if not path.exists()]
    if missing:
        raise ConfigError("\n".join(missing))
    if options.out.exists():
        if not options.replace:
            raise ConfigError(f"{options.out} exists; --replace makes it again, or name another file")
        from ramet_tools_bing.providers.offline import open_corpus

        open_corpus(options.out).close()  # another file is not replaced
    if options.engine == "tantivy":
        from ramet_tools_bing.corpus_tantivy import check_installed

        check_installed()


def _built(options: argparse.Namespace, items: Iterator[SearchItem]) -> int:
    if options.engine == "sqlite":
        if options.out.is_dir():
            raise ConfigError(f"{options.out} is a folder, of an engine that is not sqlite; name another file")
        return build_corpus(items, options.out)
    from ramet_tools_bing.corpus_tantivy import build_tantivy_corpus

    options.out.parent.mkdir(parents=True, exist_ok=True)
    temporary = options.out.with_name(f".{options.out.name}.{secrets.token_hex(4)}.tmp")
    try:
        count = build_tantivy_corpus(items, temporary)
        if options.out.is_dir():
            os.replace(options.out, temporary / "old")
        os.replace(temporary, options.out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(options.out / "old", ignore_errors=True)
    return count


def _passages(path: Path, counts: Counter[str], problems: list[str]) -> Iterator[SearchItem]:
    """Yield the passages of one source, whatever its form. A problem names file and line."""
    if path.is_dir():
        if not (path / DATABASE).exists():
            raise ConfigError(f"{path}: a folder that is not a cache")
        opened = open_disk(path)
        try:
            yield from _stored(value for _, value in entries(opened))
        finally:
            opened.close()
    elif _is_cache_file(path):
        yield from _stored(value for _, value in read_entries(path, counts))
    else:
        yield from _lines(path, problems)


def _is_cache_file(path: Path) -> bool:
    """A published cache is one object, whose first line is not one by itself; an export names key and value."""
    with path.open("rb") as file:
        first = file.readline(1 << 20)
    try:
        row = json.loads(first)
    except (ValueError, RecursionError):
        return first.lstrip()[:1] == b"{" and path.suffix == ".json"
    return isinstance(row, dict) and (set(row) == {"key", "value"} or (path.suffix == ".json" and _is_published(row)))


def _is_published(row: dict[str, Any]) -> bool:
    return not any(name in row for name in TEXTS)


def _stored(values: Iterator[dict[str, Any]]) -> Iterator[SearchItem]:
    for value in values:
        if kind_of(value) == "search":
            yield from map(_encodable, read_stored(value).items)
        elif kind_of(value) == "page":
            page = SearchItem(title=str(value.get("title", "")), url=str(value.get("url", "")), text=str(value["text"]))
            yield _encodable(page)


def _encodable(item: SearchItem) -> SearchItem:
    """A provider may answer with halves of surrogate pairs, which no database can store: each becomes `?`."""
    texts = {name: text.encode("utf-8", "replace").decode("utf-8") for name, text in asdict(item).items()}
    return SearchItem(**texts)


def _lines(path: Path, problems: list[str]) -> Iterator[SearchItem]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            item = _row(line)
            if isinstance(item, str):
                problems.append(f"{path}:{number}: {item}")
            else:
                yield item


def _row(line: bytes) -> SearchItem | str:
    """A passage, or the row's problem."""
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    if not isinstance(row, dict):
        return f"not a JSON object: {row!r:.80}"
    text = next((row[name] for name in TEXTS if name in row), None)
    title, url = row.get("title") or "", next((row[name] for name in URLS if row.get(name)), "")
    if not isinstance(text, str) or not text.strip():
        return f"no text under {' or '.join(TEXTS)} (it has {', '.join(map(str, row)) or 'nothing'})"
    if not isinstance(title, str) or not isinstance(url, str):
        return f"title and url must be texts, got {title!r:.40} and {url!r:.40}"
    if "contents" in row and not title:  # the form of Search-R1: the first line is the title, in quotation marks
        head, separator, rest = text.partition("\n")
        title, text = (head.strip().strip('"'), rest) if separator and rest.strip() else ("", text)
    item = SearchItem(title=title, url=url, text=text)
    return item if _encodable(item) == item else "text with half a surrogate pair"


def _search(options: argparse.Namespace) -> int:
    from ramet_tools_bing.providers.offline import open_corpus

    hits = open_corpus(options.corpus).search(options.query, options.results)
    print(default(hits, options.results, 500))
    return 0


def _info(options: argparse.Namespace) -> int:
    from ramet_tools_bing.providers.offline import open_corpus

    opened = open_corpus(options.corpus)
    size = (
        sum(file.stat().st_size for file in options.corpus.rglob("*"))
        if options.corpus.is_dir()
        else (options.corpus.stat().st_size)
    )
    print(f"{options.corpus}: {opened.passages} passages, {size / 1e6:.1f} MB")
    return 0
