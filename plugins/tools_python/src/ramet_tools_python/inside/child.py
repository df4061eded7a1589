"""The process of a program: gives up its privileges and files, then waits for the program and runs it.

It is forked before its program is known, so that the program need not wait for that. Where variables are kept, it goes
on after a program, and makes copies of itself when the slot asks for one.
"""

from __future__ import annotations

import fcntl
import math
import os
import resource
import signal
import socket
import sys
import time
from typing import NamedTuple, NoReturn

from . import landlock, processes, program, seccomp, wire
from .namespaces import PLACE  # where variables are kept: the folder of the next program, in the slot's folder

CONTROL, _RULES = 3, 4  # descriptors; of the first, programs that keep nothing see nothing: it is closed before
# Programs that keep variables may replace any name before these are used again.
_exit, _fork, _waitpid, _close, _dup2, _write = os._exit, os.fork, os.waitpid, os.close, os.dup2, os.write
_getpid, _getppid, _setsid, _chdir, _sleep = os.getpid, os.getppid, os.setsid, os.chdir, time.sleep


class Limits(NamedTuple):
    """Limits of one program. Sizes in bytes, times in seconds."""

    address_space: int
    file_size: int
    scratch: int
    stdout: int
    stderr: int
    output: int
    seconds: float
    wall_seconds: float  # after which it is stopped although it got no processor

    @property
    def cpu_s(self) -> int:
        """Seconds of CPU time after which the kernel stops it, should the slot not do so."""
        return math.ceil(self.seconds) + 1


class Confinement(NamedTuple):
    """The limits of programs. `user`: their user, None: the slot's."""

    level: int
    user: int | None
    keeps: bool  # variables are kept: there will be copies


def run(
    control: socket.socket, slot: int, folder: str, limits: Limits, confinement: Confinement, rules: int | None
) -> NoReturn:
    """Run in the forked child of `slot`. `rules`: Landlock's. Reports on `control` that it is ready, or the problem."""
    control = _only_descriptors(control, rules)
    try:
        _confine(control, folder, limits, confinement, slot, has_rules=rules is not None)
        wire.send(control, {"ready": True})
    except BaseException as error:
        wire.send(control, {"error": f"{type(error).__name__}: {error}"[:1000]})
        os._exit(1)
    program.prepare()
    if confinement.keeps:
        _serve(control, folder, slot)
    request, streams = wire.receive_with(control, 2)
    if request is None:
        _exit(0)
    control.close()
    _attach(streams)
    program.run(request["code"])


def _only_descriptors(control: socket.socket, rules: int | None) -> socket.socket:
    """The standard ones, `control` and the rules stay, as `CONTROL` and `_RULES`; all others are closed."""
    number = fcntl.fcntl(control.detach(), fcntl.F_DUPFD, 10)  # away from where the two will be
    if rules is not None:
        rules = fcntl.fcntl(rules, fcntl.F_DUPFD, 10)
        os.dup2(rules, _RULES)
    os.dup2(number, CONTROL)
    os.closerange(CONTROL + 1 if rules is None else _RULES + 1, os.sysconf("SC_OPEN_MAX"))
    return socket.socket(fileno=CONTROL)


def _confine(
    control: socket.socket, folder: str, limits: Limits, confinement: Confinement, slot: int, *, has_rules: bool
) -> None:
    os.setsid()
    os.chdir(folder)
    nothing = os.open(os.devnull, os.O_RDWR)  # a separate one: a shared one would keep flags that a program sets
    os.dup2(nothing, 0)
    os.close(nothing)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it; as a signal it shows which limit was hit
    _limit(resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + 1)
    _limit(resource.RLIMIT_AS, limits.address_space)
    _limit(resource.RLIMIT_FSIZE, limits.file_size)
    _limit(resource.RLIMIT_NOFILE, 64)
    _limit(resource.RLIMIT_CORE, 1)  # of 1 the kernel makes none; with 0 it still feeds a host's program for crashes
    if confinement.user is not None:
        if not confinement.keeps:  # all states of a slot have one user; there only the slot counts
            _limit(resource.RLIMIT_NPROC, processes.MAX_THREADS)
        processes.become(confinement.user)
    processes.drop_privileges()
    processes.keep_memory_closed()  # this and the next after the user was changed, which would undo them
    processes.die_with_parent(slot)
    if has_rules:
        landlock.restrict(_RULES)
        os.close(_RULES)
    if confinement.level >= 1 and confinement.keeps:
        listener = seccomp.ask()
        wire.send(control, {"listener": True}, [listener])
        os.close(listener)
    if confinement.level >= 1:
        seccomp.refuse(may_ask=confinement.keeps, may_truncate=not has_rules or landlock.knows_truncation())
    sys.argv[:] = [""]
    sys.path.insert(0, "")
    for name in [name for name in sys.modules if name.partition(".")[0] == "inside"]:
        del sys.modules[name]


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Lower a limit; a host that allows less already keeps its own."""
    ceiling = resource.getrlimit(kind)[1]
    hard = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def _attach(streams: list[int]) -> None:
    """Standard output and error of the next program."""
    for target, source in enumerate(streams, start=1):
        _dup2(source, target)
        _close(source)


def _serve(control: socket.socket, folder: str, slot: int) -> NoReturn:
    """Run one program after the other, all with the same variables, and be copied in between."""
    cells = program.Cells()
    while True:
        request, descriptors = wire.receive_with(control, 2)
        if request is None:
            _exit(0)
        if "code" not in request:
            _copy(descriptors[0], slot)
            continue
        _chdir(f"{folder}/{PLACE}")
        _attach(descriptors)
        wire.send(control, {"rc": cells.run(request["code"])})


def _copy(control: int, slot: int) -> None:
    """Fork a copy of this process that has `control` as its own. Returns in both of them.

    The copy is the grandchild: its parent ends at once, and so the slot, which inherits orphans, becomes the parent of
    every copy and hears of its end.
    """
    between = _fork()
    if between != 0:
        _close(control)
        _waitpid(between, 0)
        return
    between = _getpid()
    if _fork() != 0:
        _exit(0)
    while _getppid() == between:
        _sleep(0.0002)
    _setsid()
    processes.die_with_parent(slot)
    _dup2(control, CONTROL)
    _close(control)
    _write(CONTROL, b"+")
