"""Filters of system calls: no network, no processes, nothing that reaches other processes or the kernel's rare parts.

Not a list of allowed calls but of refused ones, since libraries use many calls; calls that are newer than this list are
refused too. A refused call fails with EPERM, so that programs see `PermissionError`. Landlock cannot do this part: it
covers neither UDP nor sockets of the machine, processes, or shared memory (the kernel's
`Documentation/userspace-api/landlock.rst`, "Current limitations").

A program whose variables are kept must be copied by a fork, although it may not fork by itself. There a second filter
asks the slot about each fork and each signal (`Documentation/userspace-api/seccomp_filter.rst`, "Userspace
Notification"), and the slot says yes to the one that it ordered.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import signal
import struct
from typing import NamedTuple

from . import processes, syscalls

_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_BITS, _AND, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06  # classic BPF
_ALLOW, _ERRNO, _ASK, _KILL = 0x7FFF0000, 0x00050000, 0x7FC00000, 0x80000000
_NUMBER, _PROCESSOR, _ARGUMENTS = 0, 4, 16  # offsets in `struct seccomp_data`
_SET_MODE_FILTER, _NEW_LISTENER = 1, 8
_NOTICE, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_RECEIVE, _SEND, _CONTINUE = 0xC0502100, 0xC0182101, 1
_AF_UNIX, _CLONE_THREAD, _SIGNAL_OF_END, _PR_SET_PDEATHSIG = 1, 0x00010000, 0xFF, 1
_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that `clone` knows

_REFUSED = (
    "socket", "connect", "bind", "listen", "accept", "accept4", "sendmsg", "sendmmsg",
    "shmget", "shmat", "shmctl", "semget", "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv", "msgctl",
    "mq_open", "mq_unlink", "memfd_create", "memfd_secret",
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "pidfd_getfd", "pidfd_send_signal",
    "rt_sigqueueinfo", "rt_tgsigqueueinfo", "process_mrelease", "setpriority", "ioprio_set", "sched_setparam",
    "sched_setscheduler", "sched_setattr", "sched_setaffinity", "set_mempolicy_home_node", "move_pages",
    "migrate_pages", "mbind", "set_mempolicy",
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at",
    "io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "userfaultfd", "seccomp",
    "add_key", "request_key", "keyctl", "fanotify_init", "fanotify_mark", "lookup_dcookie", "quotactl", "quotactl_fd",
    "clock_settime", "settimeofday", "adjtimex", "clock_adjtime", "sethostname", "setdomainname", "syslog", "acct",
    "swapon", "swapoff", "reboot", "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module",
    "iopl", "ioperm", "modify_ldt", "personality", "uselib", "ustat", "_sysctl", "vhangup", "setrlimit",
    "inotify_init", "inotify_init1", "inotify_add_watch", "io_setup", "io_submit",
    "timer_create", "setpgid",  # by them the kernel sends a stopped process SIGCONT (see `answer_clone`, too)
)  # fmt: skip
# Notes on files of others that later programs could read. Libraries expect file systems that have none.
_ATTRIBUTES = tuple(f"{who}{what}xattr" for what in ("set", "get", "list", "remove") for who in ("", "l", "f"))
_FLUSHES = ("sync", "syncfs", "fsync", "fdatasync", "sync_file_range")  # cannot be killed, and no file is kept
_FORKS, _SIGNALS = ("fork", "vfork"), ("kill", "tkill", "tgkill")
# They make the kernel signal another process, or choose the signal; report (and delay) what others do with a file or a
# folder; # or make a terminal, whose end sends SIGCONT, this process's (FIOSETOWN, SIOCSPGRP, TIOCSCTTY, unlock).
_COMMANDS = {"fcntl": (8, 10, 15, 1024, 1026), "ioctl": (0x8901, 0x8902, 0x540E, 0x40045431)}
_TRUNCATE, _ACCESS_MODE = os.O_TRUNC, os.O_RDONLY | os.O_WRONLY | os.O_RDWR


class _Program:
    """A BPF program in the making: blocks that begin with the number of the call loaded, and leave it loaded."""

    def __init__(self) -> None:
        self.code = bytearray()
        self.numbers = syscalls.here().numbers

    def add(self, what: int, value: int, yes: int = 0, no: int = 0) -> None:
        """One instruction. `yes` and `no` are how many to skip if a comparison is true, and if not."""
        self.code += struct.pack("=HBBI", what, yes, no, value)

    def check_processor(self) -> None:
        self.add(_LOAD, _PROCESSOR)
        self.add(_JUMP_EQUAL, syscalls.here().audit, 1, 0)
        self.add(_RETURN, _KILL)
        self.add(_LOAD, _NUMBER)

    def answer(self, names: tuple[str, ...], answer: int) -> None:
        for name in names:
            if name in self.numbers:  # not every processor has all
                self.add(_JUMP_EQUAL, self.numbers[name], 0, 1)
                self.add(_RETURN, answer)

    def answer_unless(self, name: str, argument: int, allowed: int, answer: int) -> None:
        """Allow the call only with this value of its argument, whose upper half must be zero."""
        self.add(_JUMP_EQUAL, self.numbers[name], 0, 6)
        self.add(_LOAD, _ARGUMENTS + 8 * argument)
        self.add(_JUMP_EQUAL, allowed, 0, 3)
        self.add(_LOAD, _ARGUMENTS + 8 * argument + 4)
        self.add(_JUMP_EQUAL, 0, 0, 1)
        self.add(_RETURN, _ALLOW)
        self.add(_RETURN, answer)

    def answer_if(self, name: str, argument: int, values: tuple[int, ...], answer: int) -> None:
        """Refuse a call if an argument has one of these values; otherwise it is allowed."""
        self.add(_JUMP_EQUAL, self.numbers[name], 0, 2 + 2 * len(values))
        self.add(_LOAD, _ARGUMENTS + 8 * argument)
        for value in values:
            self.add(_JUMP_EQUAL, value, 0, 1)
            self.add(_RETURN, answer)
        self.add(_RETURN, _ALLOW)

    def answer_parent_death(self, answer: int) -> None:
        """A program must not outlive its slot: the signal that it gets then can only be set to SIGKILL."""
        self.add(_JUMP_EQUAL, self.numbers["prctl"], 0, 6)
        self.add(_LOAD, _ARGUMENTS)
        self.add(_JUMP_EQUAL, _PR_SET_PDEATHSIG, 0, 3)
        self.add(_LOAD, _ARGUMENTS + 8)
        self.add(_JUMP_EQUAL, signal.SIGKILL, 1, 0)
        self.add(_RETURN, answer)
        self.add(_RETURN, _ALLOW)

    def answer_truncation(self, answer: int) -> None:
        """Refuse to write files that may only be read."""
        self.answer(("truncate",), answer)
        self.answer(("openat2",), _ERRNO | errno.ENOSYS)  # its flags are in memory; the C library does not use it
        for name, argument in (("open", 1), ("openat", 2)):
            if name in self.numbers:
                self.add(_JUMP_EQUAL, self.numbers[name], 0, 5)
                self.add(_LOAD, _ARGUMENTS + 8 * argument)
                self.add(_AND, _TRUNCATE | _ACCESS_MODE)
                self.add(_JUMP_EQUAL, _TRUNCATE | os.O_RDONLY, 0, 1)
                self.add(_RETURN, answer)
                self.add(_RETURN, _ALLOW)

    def answer_signals(self, own_pid: int, answer: int) -> None:
        """Signals only to the process `own_pid` itself, or, as 0, to its group, of which it is the only member."""
        for name in _SIGNALS:
            self.add(_JUMP_EQUAL, self.numbers[name], 0, 5)
            self.add(_LOAD, _ARGUMENTS)
            self.add(_JUMP_EQUAL, own_pid, 1, 0)
            self.add(_JUMP_EQUAL, 0, 0, 1)
            self.add(_RETURN, _ALLOW)
            self.add(_RETURN, answer)

    def answer_clone(self, answer: int) -> None:
        """Threads are allowed, processes get `answer`, namespaces are refused.

        So are processes whose end is another signal to their parent than SIGCHLD: SIGCONT wakes a stopped one.
        """
        self.add(_JUMP_EQUAL, self.numbers["clone"], 0, 9)
        self.add(_LOAD, _ARGUMENTS)
        self.add(_JUMP_BITS, _NEW_NAMESPACES, 0, 1)
        self.add(_RETURN, _ERRNO | errno.EPERM)
        self.add(_JUMP_BITS, _CLONE_THREAD, 0, 1)
        self.add(_RETURN, _ALLOW)
        self.add(_AND, _SIGNAL_OF_END)
        self.add(_JUMP_EQUAL, signal.SIGCHLD, 1, 0)
        self.add(_RETURN, _ERRNO | errno.EPERM)
        self.add(_RETURN, answer)

    def finish(self) -> bytes:
        self.add(_RETURN, _ALLOW)
        return bytes(self.code)


def refuse(*, may_ask: bool, may_truncate: bool = True) -> None:
    """Install the filter in this process for good. `may_ask`: `ask` was called before and decides forks and signals.

    `may_truncate` False: for kernels whose Landlock does not know that yet.
    """
    refused = _ERRNO | errno.EPERM
    program = _Program()
    program.check_processor()
    program.add(_JUMP_GREATER, syscalls.LAST_KNOWN, 0, 1)
    program.add(_RETURN, _ERRNO | errno.ENOSYS)
    program.answer(("clone3",), _ERRNO | errno.ENOSYS)  # its flags are in memory; the C library then uses `clone`
    program.answer(_REFUSED, refused)
    program.answer_unless("socketpair", 0, _AF_UNIX, refused)  # event loops need one
    program.answer_unless("sendto", 4, 0, refused)  # `send`: no address
    program.answer_unless("prlimit64", 2, 0, refused)  # reading limits
    program.answer(_ATTRIBUTES, _ERRNO | errno.EOPNOTSUPP)
    program.answer(_FLUSHES, _ERRNO)  # 0: it is done
    for name, commands in _COMMANDS.items():
        program.answer_if(name, 1, commands, refused)
    program.answer_parent_death(refused)
    if not may_truncate:
        program.answer_truncation(refused)
    if not may_ask:
        program.answer(_FORKS, refused)
        program.answer_signals(os.getpid(), refused)
        program.answer_clone(refused)
    _install(program.finish(), 0)


def ask() -> int:
    """Install the filter that asks about forks and signals; returns the descriptor on which the slot hears of them."""
    program = _Program()
    program.check_processor()
    program.answer((*_FORKS, *_SIGNALS), _ASK)
    program.answer_clone(_ASK)
    return _install(program.finish(), _NEW_LISTENER)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _install(code: bytes, flags: int) -> int:
    program = _FilterProgram(len(code) // 8, code)
    number = syscalls.here().numbers["seccomp"]
    return processes.call(number, _SET_MODE_FILTER, flags, ctypes.byref(program))


class Question(NamedTuple):
    """A process waits for an answer. Numbers of processes are those that the slot sees."""

    id: int
    process: int
    is_fork: bool
    target: int  # of a signal


def next_question(listener: int) -> Question | None:
    """Receive a question; None if the process that asked is gone."""
    notice = bytearray(_NOTICE.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, notice)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    identity, process, _, number, _, _, *arguments = _NOTICE.unpack(notice)
    numbers = syscalls.here().numbers
    is_signal = number in (numbers[name] for name in _SIGNALS)
    return Question(identity, process, not is_signal, arguments[0] & 0xFFFFFFFF)


def answer(listener: int, question: Question, *, allow: bool) -> None:
    reply = _ANSWER.pack(question.id, 0, 0 if allow else -errno.EPERM, _CONTINUE if allow else 0)
    try:
        fcntl.ioctl(listener, _SEND, bytearray(reply))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EINPROGRESS):
            raise
