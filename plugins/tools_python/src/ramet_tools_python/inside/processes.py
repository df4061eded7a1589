"""Linux process control that `os` does not offer: parent-death signal, subreaper, privileges, and killing strays.

A subreaper inherits the orphans of its descendants. So one that runs a program can find every process that the program
left, however often it forked and whatever session it joined.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from typing import Any

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_CAPABILITY_VERSION_3 = 0x20080522
_PAGE = 4096
MAX_THREADS = 128  # of one program; their stacks in the kernel count against no other limit here
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_processes: int | None = None  # a descriptor of /proc, where programs must not see it


def call(number: int, *arguments: Any) -> int:
    """The system call of this number. Raises OSError."""
    words = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))
    return result


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        problem = ctypes.get_errno()
        raise OSError(problem, os.strerror(problem))


def become_subreaper() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when `parent` ends. Only safe where the parent has one thread: the signal is bound to the thread."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call above
        os._exit(1)


def become(user: int) -> None:
    """Run as this user, and as the group of that number, from now on."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def drop_privileges() -> None:
    """Give up every capability for good: root without them can raise no limit and set no clock."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    if _libc.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def keep_memory_closed(closed: bool = True) -> None:
    """Close the memory, and `oom_score_adj` and the like, of this process and its forks to others of the same user.

    A change of users undoes it. While it is closed `/proc/self/uid_map` cannot be written either.
    """
    _prctl(_PR_SET_DUMPABLE, not closed)


def cpu_s(process: int) -> float | None:
    """Processor time that it has used, in seconds; None if it is gone.

    The clock of another process has its number in the upper bits (the kernel's `include/linux/posix-timers.h`).
    """
    try:
        return time.clock_gettime((~process << 3) | 2)
    except OSError:
        return None


def waited_s(process: int) -> float | None:
    """Seconds that its first thread was ready to run and had no processor; None if this kernel or host does not tell.

    Source: the kernel's `Documentation/scheduler/sched-stats.rst`, "/proc/<pid>/schedstat".
    """
    try:
        return int(_read(f"{process}/schedstat").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


def has_too_many_threads(process: int) -> bool:
    """Whether it has too many threads. False as well if it is gone, or /proc does not say."""
    try:
        return int(_read(f"{process}/stat").rpartition(b")")[2].split()[17]) > MAX_THREADS
    except (OSError, IndexError, ValueError):
        return False


def look_through(descriptor: int) -> None:
    """Read /proc there from now on."""
    global _processes
    _processes = descriptor


def _read(name: str) -> bytes:
    """A file of /proc, of at most a page."""
    file = os.open(f"/proc/{name}" if _processes is None else name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=_processes)
    try:
        return os.read(file, _PAGE)
    finally:
        os.close(file)


def kill_group(leader: int) -> None:
    """Kill a process and its group. The leader must not have been reaped, or its number may be another's."""
    for kill in (os.killpg, os.kill):
        try:
            kill(leader, signal.SIGKILL)
        except ProcessLookupError:
            pass


def kill_children(spare: frozenset[int] = frozenset(), patience_s: float = 2.0) -> bool:
    """Kill and reap all children but `spare`, and what they leave to us, until none is left. False: some remain."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        strays = _children() - spare
        if not strays:
            return True
        for pid in strays:
            os.kill(pid, signal.SIGKILL)
        for pid in strays:
            os.waitpid(pid, 0)
    return False


def kill_descendants(spare: set[int], patience_s: float = 2.0) -> bool:
    """Kill all that came from this process but `spare`, whose children are not spared, and reap the present and later
    children of this one. False: some remain, or /proc does not tell."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        strays = descendants()
        if strays is None:
            return False
        strays -= spare
        if not strays:
            return True
        for pid in strays:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    return False


def stands_still(process: int) -> bool:
    """Whether all threads of this child are stopped, or it has ended."""
    try:
        state = os.waitid(os.P_PID, process, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG)
    except ChildProcessError:
        return True
    return state is not None


def is_child(process: int) -> bool:
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def has_only(children: set[int]) -> bool:
    """Whether these are all children that this process has not waited for. False as well if the kernel does not tell.

    Children that others reap while it is read could hide one; here only this process reaps.
    """
    me = os.getpid()
    try:
        listed = _read(f"{me}/task/{me}/children")
    except OSError:
        return False
    return len(listed) < _PAGE and {int(pid) for pid in listed.split()} <= children


def can_see_itself() -> bool:
    """Whether /proc shows this namespace of processes."""
    return os.getpid() in _everybody()


def has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _children() -> set[int]:
    me = os.getpid()
    return {pid for pid, (parent, _) in _everybody().items() if parent == me}


def descendants() -> set[int] | None:
    """Return the children that live or wait for this process. None: /proc does not say."""
    me, everybody = os.getpid(), _everybody()
    if me not in everybody:
        return None
    below: dict[int, list[int]] = {}
    for pid, (parent, _) in everybody.items():
        below.setdefault(parent, []).append(pid)
    pids, todo = set(), [me]
    while todo:
        children = below.get(todo.pop(), [])
        pids.update(children)
        todo += children
    return {pid for pid in pids if everybody[pid][0] == me or everybody[pid][1] != b"Z"}


def _everybody() -> dict[int, tuple[int, bytes]]:
    """Parent and state of every process that can be seen."""
    states = {}
    for name in os.listdir("/proc" if _processes is None else _processes):
        if not name.isdigit():
            continue
        try:
            state, parent = _read(f"{name}/stat").rpartition(b")")[2].split()[:2]
            states[int(name)] = int(parent), state
        except (OSError, ValueError):  # it ended meanwhile
            continue
    return states
