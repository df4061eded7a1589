"""Plays hostile snippets in a process of its own: as another user, or where namespaces are forbidden, if asked for.

`python hostile_runner.py '{"snippets": FILE, "isolation": "2", "user": 65534, "deny": true}'` prints one JSON object:
what became of every snippet, and what was left behind. It has to run as root where `user` or `deny` need that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ramet_tools_python.config import PythonConfig
from ramet_tools_python.inside import namespaces, processes, seccomp
from ramet_tools_python.sandbox import Sandbox

LIMIT_S = 1.0
SLOTS = 3
SECRET = "SECRET-CANARY-123"


def open_ways_to(places: list[Path]) -> None:
    """Let every user reach these folders for the time of this process: closed ones above get an open twin in memory."""
    above = {
        place: [one for one in reversed(place.parents) if not one.stat().st_mode & stat.S_IXOTH] for place in places
    }
    hidden = [place for place in places if above[place]]
    if not hidden:
        return
    namespaces._check(namespaces._libc.unshare(namespaces._NEW_MOUNTS), "unshare")
    namespaces._mount(None, "/", None, namespaces._RECURSIVE | namespaces._PRIVATE)
    twins = {place: tempfile.mkdtemp() for place in hidden}
    for place, twin in twins.items():
        namespaces._mount(str(place), twin, None, namespaces._BIND)
    for closed in {above[place][0] for place in hidden}:
        namespaces._mount("way", str(closed), "tmpfs", 0, "mode=755")
    for place, twin in twins.items():
        place.mkdir(parents=True, exist_ok=True)
        namespaces._mount(twin, str(place), None, namespaces._BIND)


def deny_namespaces() -> None:
    """What Docker's default profile does: no new namespaces and no mounts, for this process and all below it."""
    program = seccomp._Program()
    program.check_processor()
    program.answer(("clone3",), seccomp._ERRNO | 38)
    program.answer(("unshare", "setns", "mount", "umount2", "pivot_root"), seccomp._ERRNO | 1)
    program.answer_clone(seccomp._ALLOW)
    seccomp._install(program.finish(), 0)


@contextlib.contextmanager
def surroundings() -> Iterator[tuple[Path, int]]:
    """A folder with a canary of this user, and a port that somebody listens on, as on two sockets of the machine."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    folder.chmod(0o711)  # programs with a user of their own must reach their scratch folder
    canary = folder / "canary"
    (canary / "canary_dir").mkdir(parents=True)
    (canary / "canary.txt").write_text("CANARY")
    (folder / "scratch").mkdir()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for address in ("\0relspike-canary", str(canary / "canary.sock")):
            listening = stack.enter_context(socket.socket(socket.AF_UNIX))
            with contextlib.suppress(OSError):  # another run has the abstract one, which will do
                listening.bind(address)
                listening.listen()
        try:
            yield folder, server.getsockname()[1]
        finally:
            shutil.rmtree(folder)


async def play(sandbox: Sandbox, snippet: dict[str, Any], canary: Path, port: int) -> list[dict[str, Any]]:
    code = snippet["code"].replace("{CANARY_DIR}", str(canary)).replace("{PORT}", str(port))
    outcomes = []
    for _ in range(snippet["expect"].get("repeat", 1)):
        started = time.monotonic()
        result = await sandbox.run(code)
        outcomes.append(
            {
                "status": str(result.status), "rc": result.rc, "out": result.stdout, "err": result.stderr,
                "truncated": result.truncated_stdout, "took": time.monotonic() - started - result.queue_ms / 1000,
                "alive": (await sandbox.run("print('alive')")).text,
            }
        )  # fmt: skip
    return outcomes


def size_of(sandbox: Sandbox) -> dict[str, int]:
    """Processes of the pool, and the memory in MiB of each, added up."""
    zygote = sandbox.slots._zygote
    assert zygote is not None
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    pool, level = {zygote.process.pid}, {zygote.process.pid}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        pool |= level
    return {"processes": len(pool), "memory_mb": sum(map(own_memory_mb, pool))}


def own_memory_mb(pid: int) -> int:
    """What is not a file's, shared with what it was forked from or not: of closed memory no more is told."""
    with contextlib.suppress(OSError):
        _, resident, files, *_ = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(resident) - int(files)) * os.sysconf("SC_PAGE_SIZE") >> 20
    return 0


async def rest(sandbox: Sandbox) -> None:
    """Use all slots, and give each time to start the process of its next program."""
    await asyncio.gather(*(sandbox.run("import time; time.sleep(0.2)") for _ in range(SLOTS)))
    await asyncio.sleep(0.3)


async def play_all(snippets: list[dict[str, Any]], asked: dict[str, Any], folder: Path, port: int) -> dict[str, Any]:
    sandbox = Sandbox(
        PythonConfig(
            timeout_s=LIMIT_S, memory_mb=1024, scratch=str(folder / "scratch"), queue_timeout_s=120, slots=SLOTS,
            isolation=asked["isolation"],
        )
    )  # fmt: skip
    try:
        isolation = await sandbox.start()
        await rest(sandbox)
        before = size_of(sandbox)
        played = await asyncio.gather(*(play(sandbox, snippet, folder / "canary", port) for snippet in snippets))
        await rest(sandbox)
        after = size_of(sandbox)
    finally:
        await sandbox.aclose()
    return {
        "level": isolation.level,
        "way": isolation.way,
        "missing": dict(isolation.missing),
        "outcomes": {snippet["name"]: outcome for snippet, outcome in zip(snippets, played, strict=True)},
        "pool": [before, after],
    }


def main() -> None:
    asked = json.loads(sys.argv[1])
    # Read as the user that runs the tests: another one may not reach the folder of the repository.
    snippets = [json.loads(line) for line in Path(asked["snippets"]).read_text(encoding="utf-8").splitlines()]
    snippets = [snippet for snippet in snippets if snippet["name"] in asked["names"]]
    processes.become_subreaper()  # whatever escapes comes to us
    if os.geteuid() == 0:
        open_ways_to([Path(sys.base_prefix), Path(sys.prefix), Path(namespaces.__file__).parents[1]])
    if asked["user"]:
        processes.become(asked["user"])
    if asked["deny"]:
        processes._prctl(processes._PR_SET_NO_NEW_PRIVS, 1)  # without it only root may filter
        deny_namespaces()
    os.environ["MY_API_KEY"] = SECRET
    with surroundings() as (folder, port):
        report = asyncio.run(play_all(snippets, asked, folder, port))
        report["scratch"] = [path.name for path in (folder / "scratch").iterdir()]
        report["canary"] = sorted(path.name for path in (folder / "canary").iterdir())
        report["canary_text"] = (folder / "canary" / "canary.txt").read_text()
    report["strays"] = processes.has_children()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
