"""Levels of isolation: the levels that this host allows, found by trials, and the folders that programs may read.

0: limits, no privileges. 1: and no network, no processes, no rare system calls. 2: and no files but the interpreter's
and the program's folder. 3: and namespaces, or, for root on a host that forbids those, a separate user. Each way is
tried in a separate process, on exactly the calls that programs will be kept from.
"""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from . import landlock, namespaces, processes, seccomp

HIGHEST = 3
NAMESPACES, OWN_USER, ROOT = "namespaces", "own user", "root"
FIRST_USER, USERS = 60000, 1000  # numbers that belong to no user on common systems
_claims: list[socket.socket] = []  # of the user of this process's programs
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo")


class Found(NamedTuple):
    """`level` is in force. `way`: `namespaces` at level 3, `own user` at any, `root` if programs run as that; otherwise
    empty. `missing`: level -> why this host does not allow it."""

    level: int
    way: str
    has_landlock: bool
    missing: dict[int, str]


def own_user() -> int | None:
    """Choose a user without rights that no other slot of this host has; None where this process may not choose one.

    Slots that share a user share its limit of threads, and below level 2 its files. An abstract socket reserves the
    number until the processes of the slot have ended, so this is called before they leave the host's network.
    """
    if os.geteuid() != 0:
        return None
    for number in range(os.getpid(), os.getpid() + USERS):
        user, claim = FIRST_USER + number % USERS, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0ramet-user-{user}")
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return user
    raise OSError(f"all users from {FIRST_USER} to {FIRST_USER + USERS - 1} have slots")


def keep_importable(modules: Iterable[str]) -> list[str]:
    """Folders that programs may read: the interpreter, its libraries and the system's.

    Entries of `sys.path` outside the interpreter are removed, unless one of these imported `modules` comes from there:
    in an editable installation they are somebody's working folder.
    """
    origins = [str(getattr(sys.modules[name], "__file__", None) or "") for name in modules]
    inside = tuple(f"{prefix}/" for prefix in {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix})
    sys.path[:] = [
        entry
        for entry in sys.path
        if f"{entry}/".startswith(inside) or any(origin.startswith(f"{entry}/") for origin in origins if entry)
    ]
    library = sysconfig.get_config_var("LIBDIR")
    paths = [*sys.path, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")), *_SYSTEM]
    paths += [sys.executable, os.path.realpath(sys.executable), f"{sys.prefix}/pyvenv.cfg"]
    paths += [library] if library else []
    return [path for path in dict.fromkeys(paths) if os.path.isabs(path) and os.path.exists(path)]


def find(wanted: int | None, folder: str, readable: Sequence[str], *, keeps: bool) -> Found:
    """The highest level up to `wanted` (None: any). `folder` is an empty one that may be used for a try."""
    highest = HIGHEST if wanted is None else wanted
    missing: dict[int, str] = {}

    def works(level: int, what: str, attempt: Callable[[], None]) -> bool:
        problem = _try(attempt)
        if problem:
            missing[level] = "; ".join(filter(None, (missing.get(level), f"{what}: {problem}")))
        return not problem

    has_filter = highest >= 1 and works(1, "seccomp", lambda: _filter(keeps))
    has_landlock = has_filter and highest >= 2 and works(2, "landlock", lambda: _forbid_files(folder, readable))
    if has_filter and highest >= 3 and works(3, NAMESPACES, lambda: _separate(folder, readable, keeps)):
        missing.pop(2, None)  # the file system of the namespace keeps that promise
        return Found(3, NAMESPACES, has_landlock, missing)
    level = has_filter + has_landlock
    if os.geteuid() != 0:
        return Found(level, "", has_landlock, missing)
    if not works(3, OWN_USER, lambda: _change_user(folder, readable)):
        return Found(level, ROOT, has_landlock, missing)
    if has_landlock and highest >= 3:
        return Found(3, OWN_USER, True, {})
    return Found(level, OWN_USER, has_landlock, missing)


def _try(attempt: Callable[[], None]) -> str:
    """The failure of a process that made the attempt; empty if it had none."""
    report, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(report)
            attempt()
        except BaseException as error:
            os.write(write, (str(error) or type(error).__name__).encode()[:500])
        finally:
            os._exit(0)
    os.close(write)
    with open(report, "rb") as problem:
        text = problem.read().decode()
    os.waitpid(pid, 0)
    return text


def _filter(keeps: bool) -> None:
    processes.drop_privileges()
    if keeps:
        seccomp.ask()
    seccomp.refuse(may_ask=keeps)
    _refused(lambda: socket.socket().close(), "a socket could be opened")


def _forbid_files(folder: str, readable: Sequence[str]) -> None:
    processes.drop_privileges()
    landlock.restrict(landlock.make_rules(readable, namespaces.DEVICES, []))
    os.listdir(os.path.dirname(os.__file__))
    _refused(lambda: os.listdir(folder), "a forbidden folder could be read")


def _refused(attempt: Callable[[], object], otherwise: str) -> None:
    try:
        attempt()
    except PermissionError:
        return
    raise OSError(otherwise)


def _separate(folder: str, readable: Sequence[str], keeps: bool) -> None:
    namespaces.leave()
    problem = _try(lambda: _use_namespaces(folder, readable, keeps))
    if problem:
        raise OSError(problem)


def _use_namespaces(folder: str, readable: Sequence[str], keeps: bool) -> None:
    user, place = FIRST_USER if os.geteuid() == 0 else None, namespaces.scratch(keeps=keeps)
    namespaces.build_root(folder, readable, place, user, 1 << 20)
    if keeps and not processes.can_see_itself():
        raise OSError("no /proc can be mounted, in which to look for what programs fork")
    if user is not None:
        processes.become(user)
    os.listdir(os.path.dirname(os.__file__))
    with open(f"{place}/file", "w") as file:
        file.write("x")


def _change_user(folder: str, readable: Sequence[str]) -> None:
    os.chown(folder, FIRST_USER, FIRST_USER)
    processes.become(FIRST_USER)
    for path in (sys.executable, os.path.dirname(os.__file__), *readable):
        if not os.access(path, os.R_OK):
            raise OSError(f"another user cannot read {path}")
    with open(f"{folder}/file", "w") as file:
        file.write("x")
    os.unlink(f"{folder}/file")
