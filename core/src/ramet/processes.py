"""Processes that end when the process that started them ends, however that happened (an error, `kill -9`).

There are two ways, depending on whose code runs in the child:

* Code of Ramet runs in the child, or in a child of that child: start it with `ownership()` in its environment, and
  call `end_with_owner()` in it. `end_by_parent_alone()` keeps it from ending before.
* Only foreign code runs in them (all that a library starts): start them inside `ProcessReaper.tagging`, or with its
  `tag` in their environment. A helper process waits for the end of this one and kills the remaining ones.

Both need Linux for all that they can do; elsewhere `end_with_owner` looks twice a second, and a reaper finds nothing.

This file is also the helper process's script, started without site-packages: it imports only the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType

OWNER = "RAMET_OWNER"  # environment variable: the id of the process whose end ends this one
TAG = "RAMET_REAPER_TAG"  # environment variable: which `ProcessReaper` a process belongs to
POLL_S = 0.5  # between two looks at a process, where the system cannot tell that it ended
PATIENCE_S = 3.0  # for what can end by itself, before it is killed
PROC = Path("/proc")
ACCEPT = getattr(signal, "SIGRTMIN", signal.SIGUSR2)  # between two threads of a process: no other process sends it


def ownership() -> dict[str, str]:
    """Environment variables for a process that ends with this one. Its own children inherit them."""
    return {OWNER: str(os.getpid())}


def end_with_owner() -> None:
    """Kill this process, and those between it and its owner, as soon as the owner has ended.

    The owner is the process that called `ownership`: this one's parent or a more distant ancestor. Raises `KeyError` if
    the environment does not have its variables.
    """
    owner = int(os.environ[OWNER])
    between = [(pid, _started(pid)) for pid in _ancestors_below(owner)]

    def end() -> None:
        for pid, started in between:
            if _started(pid) == started:  # otherwise it has ended, and its id may be another process's by now
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    when_ended(owner, end)


def end_by_parent_alone() -> None:
    """Have SIGTERM end this process, from now on, only if its parent has sent it.

    What stops a run (a job system, `timeout`, a shell) may send SIGTERM to every process of it. Its main process saves
    and ends the others; those must not end before. Called in the main thread of a process that was started with SIGTERM
    blocked, so that none of its threads gets it. The handler that SIGTERM has then is called when it comes from the
    parent.
    """
    if not hasattr(signal, "sigwaitinfo"):  # macOS, which does not say who sent a signal
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return
    parent, main = os.getppid(), threading.get_ident()

    def accept(number: int, frame: FrameType | None) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        signal.raise_signal(signal.SIGTERM)

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
            pass
        signal.pthread_kill(main, ACCEPT)

    signal.signal(ACCEPT, accept)
    threading.Thread(target=wait, name="ramet-sigterm", daemon=True).start()


def when_ended(pid: int, then: Callable[[], None]) -> None:
    """Call `then` in a separate thread once this process has ended, also if it had when this was called."""
    wait = _waiter(pid)

    def run() -> None:
        wait()
        then()

    threading.Thread(target=run, name=f"ramet-end-of-{pid}", daemon=True).start()


def _waiter(pid: int) -> Callable[[], None]:
    """Returns when the process that has this id now is gone; a zombie is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return lambda: None
    except (AttributeError, OSError):  # not Linux, or forbidden in this container
        return lambda: _poll(pid)
    poll = select.poll()
    poll.register(handle, select.POLLIN)

    def wait() -> None:
        poll.poll()
        os.close(handle)

    return wait


def _poll(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone, or its id is another user's process's by now
        while _stat(pid)[:1] != ["Z"]:
            os.kill(pid, 0)
            time.sleep(POLL_S)


def _ancestors_below(owner: int) -> list[int]:
    """Processes between this one and its ancestor `owner`; none if that is not one (it may have ended already)."""
    between = []
    pid = os.getppid()
    while pid not in (owner, 0):
        between.append(pid)
        pid = _parent_of(pid)
    return between if pid == owner else []


def _parent_of(pid: int) -> int:
    """0 if it has ended."""
    return int((_stat(pid) or ["", "0"])[1])


def _started(pid: int) -> str | None:
    """Start of the process in ticks since the machine's start; None if it ended. Processes of one id differ in it."""
    fields = _stat(pid)
    return fields[19] if fields else None


def _stat(pid: int) -> list[str]:
    """State, parent and so on: `/proc/PID/stat` after the command's name. Empty if it has ended."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name, in brackets, may have any characters


class ProcessReaper:
    """Kills what the programs of a library leave running after this process, or after `reap`.

    A process belongs to the reaper if it was started inside `tagging` or with `tag`, or by such a process. It also
    belongs if it has a file open below a folder of `watch_folder`, for programs that overwrite their environment.
    """

    def __init__(self) -> None:
        """Starts the helper process."""
        self._tag = uuid.uuid4().hex
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, self._tag, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C and a hang-up are for the owner
        )

    def tag(self) -> dict[str, str]:
        """Environment variables for a process that belongs to this reaper. Its own children inherit them."""
        return {TAG: self._tag}

    @contextlib.contextmanager
    def tagging(self) -> Iterator[None]:
        """Tag processes that are started inside as this reaper's. Changes this process's environment meanwhile."""
        os.environ.update(self.tag())
        try:
            yield
        finally:
            del os.environ[TAG]

    def watch_folder(self, folder: str) -> None:
        """Processes with a file open in it belong to this reaper. A second folder replaces the first."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n".encode())
        self._process.stdin.flush()

    def reap(self) -> None:
        """Kill the remaining processes at once, and end the helper process. Returns when all are gone."""
        self._process.communicate(b"\n")


_reapers: dict[int, ProcessReaper] = {}  # by process: a fork must not end its parent's programs


def own_reaper() -> ProcessReaper:
    """The reaper of this process's programs, which may ignore the end of their input: tools' servers, agents.

    They are ended 3 s after a process that was killed, and at once where it comes to its own end.
    """
    pid = os.getpid()
    if pid not in _reapers:
        _reapers[pid] = ProcessReaper()
        atexit.register(_reap, pid)
    return _reapers[pid]


def _reap(pid: int) -> None:
    if pid == os.getpid():
        _reapers[pid].reap()


def kill_tagged(variable: str) -> None:
    """Kill all processes that have this `NAME=VALUE` in their environment; returns when all are gone. Linux only."""
    while pids := tagged_processes(variable):
        _kill(pids)


def tagged_processes(variable: str) -> list[int]:
    """Return all processes that have this `NAME=VALUE` in their environment, without this one. Linux only."""
    return _members(variable, "", os.getpid())


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.02)


def _members(variable: str, folder: str, owner: int) -> list[int]:
    """Processes with the variable, or with a file open in the folder, without the owner and this one."""
    pids = []
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit() and int(entry.name) not in (owner, os.getpid()):
            with contextlib.suppress(OSError):  # it has ended meanwhile, or is another user's
                if variable.encode() in (entry / "environ").read_bytes().split(b"\0") or _has_open(entry, folder):
                    pids.append(int(entry.name))
    return pids


def _has_open(process: Path, folder: str) -> bool:
    return bool(folder) and any(os.readlink(link).startswith(f"{folder}/") for link in (process / "fd").iterdir())


def _helper(tag: str, owner: int) -> None:
    """The reaper's helper process. A line of its input is a folder to watch, an empty line means `reap`."""
    folder = ""

    def kill_all() -> None:
        while pids := _members(f"{TAG}={tag}", folder, owner):
            _kill(pids)

    def after_owner() -> None:
        time.sleep(PATIENCE_S)
        kill_all()
        os._exit(0)

    when_ended(owner, after_owner)
    for line in sys.stdin:
        if line == "\n":
            kill_all()
            return
        folder = line.rstrip("\n")
    threading.Event().wait()  # the input is closed: the owner has ended, and `after_owner` is running


if __name__ == "__main__":
    _helper(sys.argv[1], int(sys.argv[2]))
