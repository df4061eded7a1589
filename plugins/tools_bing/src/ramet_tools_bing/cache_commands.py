"""`ramet cache`: inspect, export, import and repair the cache of web searches."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sqlite3
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import diskcache

from ramet import ConfigError
from ramet_tools_bing.arguments import Arguments
from ramet_tools_bing.cache_disk import ForeignKey, open_disk
from ramet_tools_bing.cache_entries import DATABASE, entries, kind_of, put_all, read_entries, time_of
from ramet_tools_bing.config import default_cache_folder
from ramet_tools_bing.queries import normalised
from ramet_tools_bing.results import default, read_stored


def cache(arguments: Sequence[str]) -> int:
    """inspect, export, import and repair the cache of web searches"""
    options = _parser().parse_args(arguments)
    code: int = options.run(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Arguments(prog="ramet cache", description=cache.__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Any, summary: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument(
            "--folder", type=Path, default=default_cache_folder(), help="of the cache (default: %(default)s)"
        )
        command.set_defaults(run=run, parser=command)
        return command

    add("stats", _stats, "how many entries there are, of which kinds, and how old")
    add("get", _get, "print what is stored for a query").add_argument("query")
    add("import", _import, "add entries of files: a published search_cache.json, or what export wrote").add_argument(
        "files", nargs="+", type=Path
    )
    add("export", _export, "write all entries as JSON lines").add_argument("file", type=Path)
    add("merge", _merge, "add the entries of other caches").add_argument("others", nargs="+", type=Path)
    add("check", _check, "read every entry").add_argument(
        "--repair", action="store_true", help="remove what cannot be read; a database that is broken is set aside"
    )
    return parser


@contextmanager
def _opened(folder: Path, *, must_exist: bool = True) -> Iterator[diskcache.Cache]:
    if must_exist and not (folder / DATABASE).exists():
        raise ConfigError(f"{folder}: there is no cache")
    try:
        opened = open_disk(folder)
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(f"{folder}: {error}; `ramet cache check --repair` may help") from error
    try:
        yield opened
    finally:
        opened.close()


def _stats(options: argparse.Namespace) -> int:
    kinds, providers, times = Counter[str](), Counter[str](), list[float]()
    with _opened(options.folder) as opened:
        for _, value in entries(opened):
            kinds[kind_of(value)] += 1
            providers.update([_recorder(value)] if "provider" in value else [])
            times += [time_of(value)] if time_of(value) else []
        size = opened.volume()
    print(f"{options.folder}: {kinds.total()} entries, {size / 1e6:.1f} MB")
    for counts in (kinds, providers):
        print("".join(f"  {name}: {count}\n" for name, count in sorted(counts.items())), end="")
    if times:
        print(f"  from {_date(min(times))} to {_date(max(times))}")
    return 0


def _recorder(value: Mapping[str, Any]) -> str:
    """The provider, with the options that a replay needs where they are stored."""
    options = value.get("options")
    return f"{value['provider']} ({options})" if options else str(value["provider"])


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _get(options: argparse.Namespace) -> int:
    query, n_entries = normalised(options.query), 0
    with _opened(options.folder) as opened:
        for _, value in entries(opened):
            if kind_of(value) == "search" and value.get("query") == query:
                n_entries += 1
                result = read_stored(value)
                print(f"{result.provider}, {_date(result.fetched_at)}:\n{default(result.items, 100, 10_000)}")
    if not n_entries:
        print(f"nothing is stored for {query!r}")
    return 0 if n_entries else 1


def _import(options: argparse.Namespace) -> int:
    with _opened(options.folder, must_exist=False) as opened:
        for path in options.files:
            counts = Counter[str]()
            put_all(opened, read_entries(path, counts), counts)
            print(f"{path}: {_said(counts)}")
    return 0


def _said(counts: Counter[str]) -> str:
    left_out = {
        "failures": "stored failures left out",
        "too long": "with a query that is too long left out",
        "unreadable": "unreadable left out",
    }
    said = [f"{counts['new']} new", f"{counts['replaced']} replaced", f"{counts['kept']} already there"]
    return ", ".join([*said, *(f"{counts[name]} {words}" for name, words in left_out.items() if counts[name])])


def _export(options: argparse.Namespace) -> int:
    if options.file.exists():
        raise ConfigError(f"{options.file} exists; name a new file")
    count = 0
    temporary = options.file.with_name(f".{options.file.name}.{secrets.token_hex(4)}.tmp")
    try:
        with _opened(options.folder) as opened, temporary.open("x", encoding="ascii") as file:
            for key, value in entries(opened):
                file.write(json.dumps({"key": key, "value": value}) + "\n")
                count += 1
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(options.file)
    finally:
        temporary.unlink(missing_ok=True)
    print(f"{options.file}: {count} entries")
    return 0


def _merge(options: argparse.Namespace) -> int:
    for other in options.others:
        if other.absolute() == options.folder.absolute():
            raise ConfigError(f"{other} is the cache that is merged into")
        counts = Counter[str]()
        with _opened(other) as source, _opened(options.folder, must_exist=False) as opened:
            put_all(opened, entries(source), counts)
        print(f"{other}: {_said(counts)}")
    return 0


def _check(options: argparse.Namespace) -> int:
    try:
        with _opened(options.folder) as opened:
            problems = _problems(opened, options.repair)
    except ConfigError:
        if not options.repair or not (options.folder / DATABASE).exists():
            raise
        problems = [_set_aside(options.folder)]
    print("".join(f"{problem}\n" for problem in problems) or f"{options.folder}: nothing is wrong\n", end="")
    return 0 if options.repair or not problems else 1


def _problems(opened: diskcache.Cache, repair: bool) -> list[str]:
    """Entries that cannot be read; with `repair` they are removed."""
    problems = []
    folder = Path(opened.directory)
    if repair:
        opened.expire(retry=True)  # entries of Ramet never expire, and `delete` does not see those that have
    for key in list(opened):
        try:
            if isinstance(key, ForeignKey):
                raise ValueError("its key is not a text")
            opened.get(key, retry=True)
        except (ValueError, OSError, RecursionError) as error:
            is_gone = repair and opened.delete(key, retry=True)
            problems.append(f"{folder}: entry {_shown(key)}: {error}{' (removed)' if is_gone else ''}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        caught = opened.check(fix=repair, retry=True)
    return problems + [f"{folder}: {warning.message}{' (fixed)' if repair else ''}" for warning in caught]


def _shown(key: str | ForeignKey) -> str:
    return repr(key if isinstance(key, str) else key.stored)[:80]


def _set_aside(folder: Path) -> str:
    """A database that cannot be opened is renamed, with its journal; a new one is made at the next use."""
    aside = f"{DATABASE}.bad-{time.strftime('%Y%m%d-%H%M%S')}"
    for end in ("", "-wal", "-shm"):
        if (folder / f"{DATABASE}{end}").exists():
            (folder / f"{DATABASE}{end}").rename(folder / f"{aside}{end}")
    return f"{folder / DATABASE} could not be read and is now {aside}"
