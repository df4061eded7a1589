"""Runs `promises_program.py` at one setting: a level, a user, and what the kernel is made to refuse.

`python promises_runner.py '[{"isolation": "2", "user": 65534, "deny": ["unshare"]}, …]'` prints a JSON list: for each
the level, its way, and what became of each probe, with variables kept between calls and without. `user` and `deny` need
root.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hostile_runner import open_ways_to

from ramet_tools_python import KeepingPythonTool, PythonConfig, PythonResult, PythonTool
from ramet_tools_python.inside import namespaces, processes, seccomp

PROGRAM = Path(__file__).with_name("promises_program.py").read_text(encoding="utf-8")
PLANT = """
secret = "PLANTED-4815162342"
print(secret * 100)
try: open({planted!r}, "w").write(secret)
except OSError: pass
import fcntl
fcntl.fcntl(0, 10, 37)  # F_SETSIG
"""
THREADS = """
import threading, time
threading.stack_size(1 << 16)
for started in range(2000):
    try: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    except RuntimeError: break
print(started)
"""


def deny(names: list[str]) -> None:
    """As a host that lacks them would, for this process and all below it. One is a flag of `clone`."""
    program = seccomp._Program()
    program.check_processor()
    if "CLONE_PARENT" in names:
        program.add(seccomp._JUMP_EQUAL, program.numbers["clone"], 0, 4)
        program.add(seccomp._LOAD, seccomp._ARGUMENTS)
        program.add(seccomp._JUMP_BITS, 0x8000, 0, 1)
        program.add(seccomp._RETURN, seccomp._ERRNO | errno.EINVAL)
        program.add(seccomp._RETURN, seccomp._ALLOW)
    program.answer(tuple(names), seccomp._ERRNO | errno.ENOSYS)
    seccomp._install(program.finish(), 0)


@contextlib.contextmanager
def surroundings() -> Iterator[dict[str, Any]]:
    """What programs must not reach: a process, a folder, a server, all of this user."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    folder.chmod(0o711)
    (folder / "scratch").mkdir(mode=0o755)
    own = folder / "own"
    own.mkdir(mode=0o700)
    (own / "file").write_text("x")
    with contextlib.suppress(OSError):
        os.setxattr(own / "file", "user.given", b"x")
    waits = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    victim = subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert victim.stdout is not None
    victim.stdout.readline()
    given = {
        "victim": victim.pid, "folder": str(own), "scratch": str(folder / "scratch"),
        "planted": f"/tmp/ramet-planted-{victim.pid}", "shared": f"/dev/shm/ramet-shared-{victim.pid}",
        "io_setup": {"x86_64": 206}.get(platform.machine(), 0),
    }  # fmt: skip
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
            local.bind(str(own / "server"))
            local.listen()
            yield {**given, "port": server.getsockname()[1]}
    finally:
        victim.kill()
        victim.wait()
        shutil.rmtree(folder)
        for name in ("planted", "shared"):
            with contextlib.suppress(OSError):
                os.unlink(given[name])


async def play(setting: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {
        "preload": [], "isolation": setting["isolation"], "slots": 1, "scratch_mb": 4, "max_file_mb": 1,
        "scratch": given["scratch"],
    }  # fmt: skip
    program = PROGRAM.replace("GIVEN: dict = {}", f"GIVEN = {given!r}")
    plant = PLANT.format(planted=given["planted"])
    async with PythonTool(PythonConfig(**options)) as tool:
        isolation = await tool.isolation()
        await tool.run(plant)
        found = {"call": as_probes(await tool.run(program))}
        threads = [await tool.run(THREADS)]
    async with KeepingPythonTool(PythonConfig(state="rollout", **options)) as keeping:
        one, other, third = [await keeping.open() for _ in range(3)]
        await keeping.run(plant, one)
        await keeping.run("n = 1", other)
        found["rollout"] = as_probes(await keeping.run(program, other))
        threads.append(await keeping.run(THREADS, third))
    return {
        "level": isolation.level, "way": isolation.way, "missing": dict(isolation.missing), "found": found,
        "threads": [(str(result.status), result.stdout) for result in threads],
    }  # fmt: skip


def as_probes(result: PythonResult) -> dict[str, list[str | None]]:
    assert result.status == "ok", result.text
    found: dict[str, list[str | None]] = json.loads(result.stdout)
    return found


def report(setting: dict[str, Any]) -> dict[str, Any]:
    if setting["user"]:
        processes.become(setting["user"])
    if setting["deny"]:
        processes._prctl(processes._PR_SET_NO_NEW_PRIVS, 1)  # without it only root may filter
        deny(setting["deny"])
    os.environ["MY_API_KEY"] = "SECRET-CANARY-123"
    with surroundings() as given:
        return asyncio.run(play(setting, given))


def main() -> None:
    if os.geteuid() == 0:
        open_ways_to([Path(sys.base_prefix), Path(sys.prefix), Path(namespaces.__file__).parents[1]])
    reports = []
    for setting in json.loads(sys.argv[1]):
        read, write = os.pipe()
        pid = os.fork()  # what a setting gives up stays so
        if pid == 0:
            try:
                os.close(read)
                with open(write, "w") as out:
                    json.dump(report(setting), out)
                os._exit(0)
            finally:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        os.close(write)
        with open(read) as text:
            reports.append(json.load(text))
        os.waitpid(pid, 0)
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
