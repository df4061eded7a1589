"""Levels: what is in force, what is refused below it, and what programs find at each."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ramet import ConfigError
from ramet.testing import local_services
from ramet_tools_python import PythonConfig, PythonTool
from ramet_tools_python.inside import isolation
from ramet_tools_python.isolation import Isolation


def level_here() -> Isolation:
    async def find() -> Isolation:
        async with PythonTool(PythonConfig(preload=[])) as tool:
            return await tool.isolation()

    return asyncio.run(find())


def test_what_programs_usually_do_works_at_the_highest_level(bench: Any) -> None:
    program = """
import asyncio, ctypes, datetime, decimal, fractions, json, os, random, shutil, signal, sqlite3, statistics, tempfile
import threading, zoneinfo
from concurrent.futures import ThreadPoolExecutor
async def later(): await asyncio.sleep(0.001); return "loop"
print(asyncio.run(later()))
with ThreadPoolExecutor(2) as pool: print(list(pool.map(abs, [-1, -2])))
with open("notes.txt", "w") as file: file.write("x" * 10)
print(len(open("notes.txt").read()), open("/dev/null").read() == "")
print(sqlite3.connect("t.db").execute("select 6*7").fetchone())
print(shutil.copy2("notes.txt", "copy.txt"), os.fsync(os.open("copy.txt", os.O_RDWR)))
signal.signal(signal.SIGUSR1, lambda *_: print("signal"))
signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
random.seed(); print(len(random.randbytes(4)))
"""
    assert bench.text(program) == "loop\n[1, 2]\n10 True\n(42,)\ncopy.txt None\nsignal\n4"


def test_all_files_of_a_program_have_a_size_where_namespaces_are_in_force(bench: Any) -> None:
    if level_here().way != "namespaces":
        pytest.skip("this host does not allow namespaces")
    fills = (
        "n = 0\ntry:\n    while True:\n        open(str(n), 'wb').write(bytes(1 << 20)); n += 1\nexcept OSError as e:\n"
    )
    fills += "    print(e.strerror, n)"
    full, empty = bench.results(fills, "import os; os.listdir()", scratch_mb=8, slots=1)
    assert full.text == "No space left on device 8" and empty.text == "[]"


def test_a_level_or_a_promise_that_this_host_lacks_is_refused_with_the_reason() -> None:
    found = Isolation(
        level=1, missing={2: "landlock: Operation not supported", 3: "namespaces: unshare: not permitted"}
    )
    with pytest.raises(ConfigError) as caught:
        found.check("3", ["network_off", "file_read"])
    here = (
        "this host allows 1 (level 2: landlock: Operation not supported; level 3: namespaces: unshare: not permitted)"
    )
    assert str(caught.value).splitlines() == [
        f"tools.python.params.isolation is 3; {here}; set tools.python.params.isolation=auto, or at most 1",
        f"tools.python.params.require names file_read, which needs isolation 2; {here}; keep "
        "tools.python.params.require=[network_off]",
    ]
    found.check("auto", ["network_off", "no_processes"])
    found.check("1", [])


def test_a_promise_above_the_chosen_level_is_refused_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        PythonTool(PythonConfig(isolation="0", require=["no_processes"]))
    assert str(caught.value) == (
        "tools.python.params.require names no_processes, which needs isolation 1; tools.python.params.isolation is 0"
    )


def test_the_level_is_written_into_the_run_when_the_tool_starts() -> None:
    async def run() -> dict[str, Any]:
        with local_services() as services:
            async with PythonTool(PythonConfig(preload=[], isolation="0")) as tool:
                await tool.start(services)
                [file] = services.folder.iterdir()
                assert file.name.startswith("isolation-")
                return dict(json.loads(file.read_text()))

    facts = asyncio.run(run())
    assert (facts["level"], facts["promises"]) == (0, [])


def test_programs_run_in_another_environment_with_its_libraries(bench: Any) -> None:
    base = str(Path(sys._base_executable).resolve())
    program = "import sys, importlib.util\nprint(sys.prefix, importlib.util.find_spec('ramet'))"
    assert bench.text(program, python=base) == f"{sys.base_prefix} None"


def test_a_module_that_the_other_environment_lacks_is_the_users_mistake(bench: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        bench.text("1", python=sys._base_executable, preload=["no_such_module"])
    assert str(caught.value) == "tools.python.params.preload: ModuleNotFoundError: No module named 'no_such_module'"


def test_an_interpreter_that_is_too_old_is_the_users_mistake(bench: Any, tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nexit 71\n")  # as _BOOT ends in one
    old.chmod(0o755)
    with pytest.raises(ConfigError) as caught:
        bench.text("1", python=str(old))
    assert str(caught.value) == f"tools.python.params.python is {str(old)!r}; allowed: Python 3.11 or newer"


@pytest.mark.parametrize("library", ["numpy", "sympy"])
def test_common_libraries_are_preloaded_where_they_are_installed(bench: Any, library: str) -> None:
    pytest.importorskip(library, reason="ramet-tools-python[math] is not installed")
    assert bench.text(f"import sys; {library!r} in sys.modules", preload=None) == "True"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can try other users")
def test_two_slots_never_have_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would share its limit of threads and, below level 2, its files. Numbers of processes collide here."""
    monkeypatch.setattr(isolation.os, "getpid", lambda: 5)
    monkeypatch.setattr(isolation, "_claims", [])
    users = [isolation.own_user() for _ in range(3)]
    assert len(set(users)) == 3 and all(user is not None and user >= isolation.FIRST_USER for user in users)
    isolation._claims.clear()  # the processes of the slots have ended
    assert isolation.own_user() == users[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root loses namespaces by it")
def test_the_users_umask_changes_no_level() -> None:
    before = level_here()
    mask = os.umask(0o077)
    try:
        assert level_here() == before
    finally:
        os.umask(mask)
