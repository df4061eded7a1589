"""A state is a stopped process: while the program of another rollout runs, it does nothing and takes nothing away."""

from __future__ import annotations

import asyncio
import os
import platform
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ramet_tools_python import KeepingPythonTool, PythonConfig
from ramet_tools_python.inside.processes import MAX_THREADS

# What a hostile program sets up, so that the kernel wakes its process after the slot has stopped it.
LOOKS = """
import ctypes, os, signal, sys, threading, time
libc = ctypes.PyDLL(None)
signal.signal(signal.SIGCONT, lambda *_: None)
signal.signal(signal.SIGHUP, lambda *_: None)
places = ["/sandbox/program", os.getcwd()]
def meddle():
    while True:
        for place in places:
            try:
                if os.path.exists(f"{place}/answer"): open(f"{place}/answer", "w").write("forged")
            except OSError: pass
        time.sleep(0.005)
frame = sys._getframe()
while "_copy" not in frame.f_globals: frame = frame.f_back
inside = frame.f_globals
def clone(flags): return libc.syscall(56, flags, 0, 0, 0, 0)
def become_copy(control):
    inside["_dup2"](control, 3); inside["_close"](control); inside["_write"](3, b"+")
def start(): threading.Thread(target=meddle, daemon=True).start()
"""
TIMER = """
event = (ctypes.c_char * 64)()
ctypes.c_int.from_buffer(event, 8).value = signal.SIGCONT
timer, times = ctypes.c_void_p(), (ctypes.c_long * 4)(0, 0, 0, 300_000_000)
libc.timer_create(1, event, ctypes.byref(timer))
libc.timer_settime(timer, 0, times, None)
start()
"""
SIGNAL_OF_A_CHILDS_END = """
def copy(control, slot):
    if clone(signal.SIGCONT) == 0:
        while True: time.sleep(1)
    if clone(0x8000 | signal.SIGCHLD) == 0: os.setsid(); return become_copy(control)
    inside["_close"](control); start()
inside["_copy"] = copy
"""
GROUP_OF_ORPHANS = """
def group(number):
    try: os.setpgid(0, number)
    except OSError: pass
def copy(control, slot):
    sibling = clone(0x8000 | signal.SIGCHLD)
    if sibling == 0: group(0); time.sleep(0.2); start(); return become_copy(control)
    if clone(signal.SIGCHLD) == 0:
        time.sleep(0.1); group(sibling)
        while True: time.sleep(1)
    inside["_close"](control)
inside["_copy"] = copy
"""
HANG_UP = """
import fcntl
def copy(control, slot):
    inside_copy(control, slot)
    if os.getpid() == me: os.close(master)  # the copy has the last one now, and its end hangs up
me, inside_copy, inside["_copy"] = os.getpid(), inside["_copy"], copy
try:
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(master, 0x540E, 0)  # TIOCSCTTY
except OSError: master = os.dup(0)
start()
"""
ECHO = """
import fcntl
try:
    master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
    fcntl.fcntl(master, 10, signal.SIGCONT)  # F_SETSIG; a terminal notes its owner by itself
    fcntl.fcntl(master, fcntl.F_SETFL, fcntl.fcntl(master, fcntl.F_GETFL) | os.O_ASYNC)
except OSError: master = os.dup(0)
start()
"""
THREADS = """
def copy(control, slot):
    threading.stack_size(1 << 16)
    for _ in range(500): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    inside_copy(control, slot)
inside_copy, inside["_copy"] = inside["_copy"], copy
"""
WAYS = {
    "timer": TIMER,
    "signal of a child's end": SIGNAL_OF_A_CHILDS_END,
    "group of orphans": GROUP_OF_ORPHANS,
    "end of a terminal": HANG_UP,
    "echo of a terminal": ECHO,
}
ANSWERS = "import time\nopen('answer', 'w').write('391')\ntime.sleep({seconds})\nopen('answer').read()"
HOLDS_NAMES = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
try:
    for number in range(20000):
        file = os.open(f"f{number}", os.O_RDWR | os.O_CREAT)
        libc.mmap(None, 4096, 1, 1, file, 0)
        os.close(file)
except OSError: pass
"""
HOLDS_BYTES = """
files = [open(f"f{number}", "wb", buffering=0) for number in range(3)]
try:
    for file in files: file.write(bytes(1 << 20))
except OSError: pass
"""


def play(steps: Callable[[KeepingPythonTool], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        async with KeepingPythonTool(PythonConfig(state="rollout", preload=[], slots=1, **options)) as tool:
            return await steps(tool)

    return asyncio.run(run())


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")
@pytest.mark.parametrize("isolation", ["1", "auto"])
@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_state_cannot_wake_itself(way: str, isolation: str) -> None:
    async def steps(tool: KeepingPythonTool) -> str:
        if (await tool.isolation()).level < 1:
            pytest.skip("this host does not allow level 1")
        hostile, other = await tool.open(), await tool.open()
        await tool.run(LOOKS + WAYS[way], hostile)
        if way != "timer":
            copy = await tool.fork(hostile)
            if "terminal" in way:
                await tool.run("os.write(master, b'x\\n')", copy)
                await tool.close(copy)
        return (await tool.run(ANSWERS.format(seconds=0.5), other)).text

    assert play(steps, isolation=isolation) == "391"


@pytest.mark.parametrize("holds", [HOLDS_NAMES, HOLDS_BYTES], ids=["names", "bytes"])
def test_files_that_a_state_holds_leave_room_for_those_of_others(holds: str) -> None:
    async def steps(tool: KeepingPythonTool) -> list[Any]:
        if (await tool.isolation()).way != "namespaces":
            pytest.skip("this host does not allow namespaces")
        hostile, other = await tool.open(), await tool.open()
        await tool.run("n = 1", other)
        await tool.run(holds, hostile)
        return [(await tool.run(program, other)).text for program in ("n", ANSWERS.format(seconds=0))]

    assert play(steps, scratch_mb=2) == ["1", "391"]


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs a file system that removes folders quickly")
def test_a_program_that_makes_many_folders_costs_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its slot cleans up for longer than a new one may take to come up."""
    many = "import os\nfor n in range(20000): os.makedirs(f'{n}/inner')"

    async def steps(tool: KeepingPythonTool) -> list[str]:
        hostile, other = await tool.open(), await tool.open()
        await tool.run("n = 1", other)
        monkeypatch.setattr("ramet_tools_python.slots.READY_S", 0.1)
        await tool.run(many, hostile)
        return [(await tool.run("n", other)).text, (await tool.run("os.getcwd() != ''", hostile)).text]

    assert play(steps, isolation="1", timeout_s=30, scratch="/dev/shm") == ["1", "True"]


@pytest.mark.parametrize("isolation", ["0", "auto"])
def test_threads_are_bounded_while_a_state_is_copied_too(bench: Any, isolation: str) -> None:
    async def steps(tool: KeepingPythonTool) -> int:
        hostile = await tool.open()
        await tool.run(LOOKS + THREADS, hostile)
        await tool.fork(hostile)
        zygote = (await tool._pool.get().slots.zygote()).process.pid
        return max(len(os.listdir(f"/proc/{process}/task")) for process in bench.descendants(zygote))

    assert play(steps, isolation=isolation) <= MAX_THREADS
