"""Namespaces of a slot: processes, network, shared memory, host name, and a file system with only what programs need.

The slot becomes process 1 of its namespace, so that all its processes end with it. Its root is a small file system in
memory in which the readable folders are mounted read-only at their own paths. Other parts of the machine do not exist
there. Programs may write only to `scratch`, which has a size limit. An ordinary user gets all that through a user
namespace, in which it stays itself. Root needs none, and its programs run as a user without any rights. Privileges for
mounting end with the slot: programs have none (`child`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence

from . import processes, syscalls

SCRATCH, PLACE = "/sandbox", "program"
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
FACTS = ("/proc/cpuinfo", "/proc/meminfo")
_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_IPC = 0x00020000, 0x04000000, 0x08000000
_NEW_USERS, _NEW_PROCESSES, _NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC, _REMOUNT = 1, 2, 4, 8, 32
_BIND, _RECURSIVE, _PRIVATE, _RELATIVE_TIMES = 4096, 16384, 1 << 18, 1 << 21
_DETACH = 2
_KEPT_FLAGS = 2 | 4 | 8 | 1024 | 2048  # no set-uid, devices, exec, access times: a user namespace cannot lift them
_RELATIVE_TIMES_IN_STATVFS = 4096
_MAX_FILES = 16384
_libc = ctypes.CDLL(None, use_errno=True)


def leave() -> None:
    """Give this process new namespaces; its next child is the first process in them. Raises OSError if not allowed."""
    user, group = os.geteuid(), os.getegid()
    wanted = _NEW_MOUNTS | _NEW_HOST_NAME | _NEW_IPC | _NEW_PROCESSES | _NEW_NETWORK
    _check(_libc.unshare(ctypes.c_int(wanted | (_NEW_USERS if user != 0 else 0))), "unshare")
    if user == 0:
        return
    processes.keep_memory_closed(False)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    processes.keep_memory_closed()


def scratch(*, keeps: bool) -> str:
    """Return where programs may write.

    Where they are kept it is below `SCRATCH`, so that rules for that are for each.
    """
    return f"{SCRATCH}/{PLACE}" if keeps else SCRATCH


def build_root(folder: str, readable: Sequence[str], place: str, user: int | None, scratch_bytes: int) -> None:
    """Make `folder`, an empty one, the root of this process. `user` owns `place`, a `scratch`; None: this one."""
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("ramet", folder, "tmpfs", _NO_SUID | _NO_DEVICES, "size=1m,mode=755")
    for path in _outermost([*readable, *DEVICES]):
        _show(path, folder)
    _show_processes(folder)
    os.makedirs(folder + place)
    os.mkdir(folder + "/.old")
    processes.call(syscalls.here().numbers["pivot_root"], os.fsencode(folder), os.fsencode(f"{folder}/.old"))
    os.chdir("/")
    _check(_libc.umount2(b"/.old", _DETACH), "umount2")
    os.rmdir("/.old")
    _mount(None, "/", None, _REMOUNT | _BIND | _READ_ONLY | _NO_SUID | _NO_DEVICES)
    mount_scratch(place, user, scratch_bytes)


def mount_scratch(place: str, user: int | None, size: int) -> None:
    owner = "" if user is None else f",uid={user},gid={user}"
    _mount("ramet", place, "tmpfs", _NO_SUID | _NO_DEVICES, f"size={size},nr_inodes={_MAX_FILES},mode=700{owner}")


def renew_scratch(place: str, user: int | None, size: int) -> None:
    """Mount another file system instead of it, however much is there.

    The old one lives as long as a process uses it.
    """
    _check(_libc.umount2(place.encode(), _DETACH), "umount2")
    mount_scratch(place, user, size)


def _outermost(paths: Sequence[str]) -> list[str]:
    """Absolute paths and what they lead to, without those within another."""
    kept: list[str] = []
    for path in sorted({path for written in paths for path in (written, os.path.realpath(written))}, key=len):
        if os.path.exists(path) and not any(path == outer or path.startswith(f"{outer}/") for outer in kept):
            kept.append(path)
    return kept


def _show(path: str, root: str) -> None:
    target = root + path
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o600))
    _mount(path, target, None, _BIND | _RECURSIVE)
    if path in DEVICES:
        return
    have = os.statvfs(target).f_flag
    times = _RELATIVE_TIMES if have & _RELATIVE_TIMES_IN_STATVFS else 0
    _mount(None, target, None, _BIND | _REMOUNT | _READ_ONLY | _NO_SUID | (have & _KEPT_FLAGS) | times)


def _show_processes(root: str) -> None:
    """Give only this process a /proc of the new namespace, if the host allows that. Programs get only the files that
    numerical libraries read, since they could find the slot and each other in the rest."""
    os.mkdir(f"{root}/proc")
    with contextlib.suppress(OSError):
        _mount("proc", f"{root}/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_EXEC)
        processes.look_through(os.open(f"{root}/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        _check(_libc.umount2(os.fsencode(f"{root}/proc"), _DETACH), "umount2")
    for path in FACTS:
        _show(path, root)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    options = None if data is None else data.encode()
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), options), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        problem = ctypes.get_errno()
        raise OSError(problem, f"{what}: {os.strerror(problem)}")
