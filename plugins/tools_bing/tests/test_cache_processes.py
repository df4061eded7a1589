"""One cache, several processes: nothing is lost or wrong (F22), also where one of them is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ramet_tools_bing.cache_commands import cache
from ramet_tools_bing.cache_disk import open_disk

WRITER = """
import sys, diskcache
from pathlib import Path
from ramet_tools_bing.cache_disk import open_disk
folder, name, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
disk = open_disk(Path(folder))
for n in range(first, last):
    disk.set(f"{name} {n}", {"text": f"{name} {n} " + "x" * (40_000 if n % 50 == 0 else 2000)}, retry=True)
    print(n, flush=True)
    assert disk.get(f"{name} {n}")["text"].startswith(f"{name} {n} ")
"""
OTHER_SETTINGS = """
import sys, diskcache
from ramet_tools_bing.cache_disk import JSONTextDisk
with diskcache.Cache(sys.argv[1], disk=JSONTextDisk, size_limit=1 << 16, cull_limit=10, timeout=60) as cache:
    for n in range(50):
        cache.set(f"other {n}", {"text": "y" * 1000}, retry=True)
"""


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def keys(folder: Path) -> set[str]:
    with sqlite3.connect(folder / "cache.db") as connection:
        return {key for (key,) in connection.execute("SELECT key FROM Cache")}


def test_four_processes_write_one_cache_and_every_entry_is_there(tmp_path: Path) -> None:
    writers = [start(WRITER, tmp_path, f"w{one}", 0, 150) for one in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert {f"w{one} {n}" for one in range(4) for n in range(150)} <= keys(tmp_path)
    assert cache(["check", "--folder", str(tmp_path)]) == 0


def test_a_run_with_other_settings_evicts_nothing_that_is_stored_afterwards(tmp_path: Path) -> None:
    first = start(WRITER, tmp_path, "first", 0, 100)
    first.wait(60)
    start(OTHER_SETTINGS, tmp_path).wait(60)  # what it culls itself cannot be helped: it did not ask us
    before = keys(tmp_path)
    start(WRITER, tmp_path, "second", 0, 100).wait(60)
    assert keys(tmp_path) - before == {f"second {n}" for n in range(100)} and before <= keys(tmp_path)


def test_a_writer_that_is_killed_loses_nothing_that_it_had_stored(tmp_path: Path) -> None:
    stored = set[str]()
    for turn in range(4):
        writer = start(WRITER, tmp_path, f"killed{turn}", 0, 100_000)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.1 + 0.05 * turn)
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged = ["0", *writer.stdout.read().split("\n")]
        writer.wait(10)
        stored |= {f"killed{turn} {n}" for n in acknowledged if n}
    assert len(stored) > 8 and stored <= keys(tmp_path)
    disk = open_disk(tmp_path)
    assert all(disk.get(key)["text"].startswith(key) for key in stored)
    assert cache(["check", "--repair", "--folder", str(tmp_path)]) == 0
    assert cache(["check", "--folder", str(tmp_path)]) == 0


def test_six_processes_open_a_new_cache_at_once(tmp_path: Path) -> None:
    writers = [start(WRITER, tmp_path / "new", f"w{one}", 0, 1) for one in range(6)]
    assert [writer.wait(60) for writer in writers] == [0] * 6
    assert len(keys(tmp_path / "new")) == 7


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_a_handle_of_its_own(tmp_path: Path) -> None:
    program = """
import asyncio, os, sys
from ramet_tools_bing.cache import AnswerCache
from ramet_tools_bing.config import CacheConfig
cache = AnswerCache(CacheConfig(cache_folder=sys.argv[1]))
cache.open()
child = os.fork()
for n in range(100):
    cache._opened().set(f"{'child' if child == 0 else 'parent'} {n}", {"text": "x"}, retry=True)
if child:
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""
    assert start(program, tmp_path).wait(60) == 0
    assert {f"{who} {n}" for who in ("child", "parent") for n in range(100)} <= keys(tmp_path)
