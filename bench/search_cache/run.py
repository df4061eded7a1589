"""The cache of searches beside a whole-file JSON cache: hits, writes by 1 to 4 processes, and import, as it grows.

    python bench/search_cache/run.py [--sizes 1000,10000,100000] [--seconds 2]

The other side is what ARPO's released search tool has: one JSON object in a file, which each process holds in memory;
a new entry takes a lock, reads the file, merges it and writes it anew. It is written here after that description. Both
sides store the same texts (1.5 kB each). A side that needs longer than `--seconds` for one write does two of them.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import print_table, write_results

from ramet_tools_bing.cache_disk import open_disk
from ramet_tools_bing.cache_entries import put_all, read_entries
from ramet_tools_bing.queries import imported_key

PROCESSES = (1, 2, 4)
WORDS = [f"word{n}" for n in range(2000)]


class Side(Protocol):
    def get(self, query: str) -> object: ...

    def put(self, query: str, text: str) -> None: ...


class Ours:
    def __init__(self, folder: Path) -> None:
        self.disk = open_disk(folder / "cache")

    def get(self, query: str) -> object:
        return self.disk.get(imported_key(query))

    def put(self, query: str, text: str) -> None:
        value = {"provider": "p", "fetched_at": time.time(), "items": [{"text": text}]}
        self.disk.set(imported_key(query), value, retry=True)


class WholeFile:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "cache.json"
        self.memory: dict[str, str] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def get(self, query: str) -> object:
        return self.memory.get(query)

    def put(self, query: str, text: str) -> None:
        self.memory[query] = text
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            stored = json.loads(self.path.read_text()) if self.path.exists() else {}
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text(json.dumps({**stored, **self.memory}, ensure_ascii=False, indent=2))
            temporary.replace(self.path)
            self.memory = {**stored, **self.memory}


SIDES: dict[str, type[Ours] | type[WholeFile]] = {"ramet": Ours, "whole file": WholeFile}


def entries(size: int) -> Iterator[tuple[str, str]]:
    draw = random.Random(1)
    for n in range(size):
        yield f"query {n} {draw.choice(WORDS)}", f"Page 1: {' '.join(draw.choices(WORDS, k=200))}"


def worker(side: str, folder: Path, name: str, seconds: float, start: Any, out: Any) -> None:
    """Write new entries for so long, at least two."""
    cache: Side = SIDES[side](folder)
    text = " ".join(WORDS[:200])
    out.put(("ready", 0, 0.0))
    start.wait()
    begun, written = time.perf_counter(), 0
    while written < 2 or time.perf_counter() - begun < seconds:
        cache.put(f"new {name} {written}", text)
        written += 1
    out.put((name, written, time.perf_counter() - begun))


def writes(side: str, folder: Path, processes: int, seconds: float) -> float:
    """Writes per second of all processes together."""
    spawn = multiprocessing.get_context("spawn")
    start, out = spawn.Event(), spawn.Queue()
    arguments = [(side, folder, f"{processes}-{n}", seconds, start, out) for n in range(processes)]
    running = [spawn.Process(target=worker, args=one) for one in arguments]
    for one in running:
        one.start()
    for _ in running:
        out.get()
    start.set()
    done = [out.get() for _ in running]
    for one in running:
        one.join()
    n_written: int = sum(written for _, written, _ in done)
    longest: float = max(took for _, _, took in done)
    return n_written / longest


def hits(side: str, folder: Path, size: int, seconds: float) -> tuple[float, float]:
    """Hits per second of one process, and the seconds that it took to open the cache."""
    begun = time.perf_counter()
    cache: Side = SIDES[side](folder)
    assert cache.get(next(entries(1))[0]) is not None
    opened, draw = time.perf_counter() - begun, random.Random(2)
    queries = [query for query, _ in entries(size)]
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for query in draw.choices(queries, k=200):
            assert cache.get(query) is not None
        count += 200
    return count / (time.perf_counter() - begun), opened


def measure(side: str, size: int, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "published.json"
        source.write_text(json.dumps(dict(entries(size))))
        begun = time.perf_counter()
        if side == "ramet":
            disk = open_disk(folder / "cache")
            put_all(disk, read_entries(source, counts := Counter[str]()), counts)
            assert counts["new"] == size
            disk.close()
        else:
            os.rename(source, folder / "cache.json")
            WholeFile(folder)
        imported = time.perf_counter() - begun
        per_s, opened = hits(side, folder, size, seconds)
        found = {"side": side, "size": size, "import_s": imported, "open_s": opened, "hits_per_s": per_s}
        return found | {f"writes_per_s_{n}": writes(side, folder, n, seconds) for n in PROCESSES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options = parser.parse_args()
    runs = []
    for size in map(int, options.sizes.split(",")):
        for side in SIDES:
            runs.append({**measure(side, size, options.seconds), "load": os.getloadavg()[0]})
            print(runs[-1], flush=True)
    columns = ["import_s", "open_s", "hits_per_s", *(f"writes_per_s_{n}" for n in PROCESSES)]
    rows = [[one["side"], f"{one['size']:,}", *(f"{one[name]:,.3g}" for name in columns)] for one in runs]
    print_table(["", "entries", *columns], rows)
    print(write_results("search_cache", vars(options), runs, {f"{one['side']} {one['size']}": one for one in runs}))


if __name__ == "__main__":
    main()
