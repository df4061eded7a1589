"""Limits of the files that a process may use: the kernel's Landlock, which needs no privileges.

Source: the kernel's `Documentation/userspace-api/landlock.rst`. Parts that the running kernel does not know yet are
left out; there `seccomp` covers the network and signals.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from . import processes, syscalls

_GET_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE, _READ, _LIST = 1, 2, 4, 8
_OF_FILES = _EXECUTE | _WRITE | _READ | 1 << 14 | 1 << 15  # with truncating and device controls
_REFER, _TRUNCATE, _DEVICE_CONTROL = 1 << 13, 1 << 14, 1 << 15  # since versions 2, 3 and 5
_MAKE_DEVICES = 1 << 6 | 1 << 11
_TRUNCATE_SINCE, _NETWORK_SINCE, _SCOPES_SINCE = 3, 4, 6


def version() -> int:
    """Return the version of the kernel's interface. Raises OSError if it has none, or it is switched off."""
    return processes.call(syscalls.here().numbers["landlock_create_ruleset"], None, 0, _GET_VERSION)


def knows_truncation() -> bool:
    return version() >= _TRUNCATE_SINCE


def make_rules(readable: Iterable[str], usable: Iterable[str], writable: Iterable[str]) -> int:
    """A descriptor of rules: read (and execute) beneath the first, read and write the second, all but devices beneath
    the third. Paths that do not exist are left out."""
    abi = version()
    handled = (1 << 13) - 1
    handled |= (
        (_REFER if abi >= 2 else 0)
        | (_TRUNCATE if abi >= _TRUNCATE_SINCE else 0)
        | (_DEVICE_CONTROL if abi >= 5 else 0)
    )
    network, scopes = (3 if abi >= _NETWORK_SINCE else 0), (3 if abi >= _SCOPES_SINCE else 0)
    attributes = struct.pack("=QQQ", handled, network, scopes)
    size = 24 if abi >= _SCOPES_SINCE else 16 if abi >= _NETWORK_SINCE else 8
    rules = processes.call(syscalls.here().numbers["landlock_create_ruleset"], attributes, size, 0)
    for paths, allowed in (
        (readable, _EXECUTE | _READ | _LIST),
        (usable, _READ | _WRITE | _TRUNCATE),
        (writable, ~(_MAKE_DEVICES | _DEVICE_CONTROL)),
    ):
        for path in paths:
            _allow(rules, path, allowed & handled)
    return rules


def _allow(rules: int, path: str, allowed: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            allowed &= _OF_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", allowed, place))
        processes.call(syscalls.here().numbers["landlock_add_rule"], rules, _PATH_BENEATH, rule, 0)
    finally:
        os.close(place)


def restrict(rules: int) -> None:
    """Restrict this process and its children, for good."""
    processes.call(syscalls.here().numbers["landlock_restrict_self"], rules, 0)
