"""The nursery of a slot: a process that forks the processes of programs and has never had a program or its output in
memory.

A fork has all the memory of its parent. A slot has requests and replies in memory, also of other rollouts, and freed
memory keeps them for long; so programs do not come from it. The slot forks its nursery before its first request.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
import traceback
from collections.abc import Sequence
from typing import NoReturn

from . import child, landlock, namespaces, processes, syscalls, wire

_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x00008000, 0x00200000, 0x01000000
_PR_GET_TID_ADDRESS = 40
_kill, _getpid = os.kill, os.getpid  # programs may replace them
_python, _libc = ctypes.pythonapi, ctypes.PyDLL(None)  # both keep the interpreter's lock, as a fork must
_libc.syscall.restype = ctypes.c_long


class Nursery:
    """The nursery as its slot sees it.

    `readable`: folders that programs may read; None: they are not kept from files.
    """

    def __init__(
        self, folder: str, limits: child.Limits, confinement: child.Confinement, readable: Sequence[str] | None
    ) -> None:
        self.control, theirs = socket.socketpair()
        slot = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                processes.die_with_parent(slot)
                _serve(theirs, slot, folder, limits, confinement, readable)
            except BaseException:
                traceback.print_exc()  # on the client's standard error
            finally:
                _kill(_getpid(), signal.SIGKILL)
        theirs.close()

    def start(self, control: socket.socket) -> int:
        """Start a process for a program, which talks on `control`; returns its number. It is a child of the slot."""
        wire.send(self.control, {}, [control.fileno()])
        reply = wire.receive(self.control)
        if reply is None:
            raise RuntimeError("the nursery of a slot is gone")  # and so is the slot now: the client starts another
        return int(reply["process"])


def _serve(
    control: socket.socket,
    slot: int,
    folder: str,
    limits: child.Limits,
    confinement: child.Confinement,
    readable: Sequence[str] | None,
) -> NoReturn:
    control_fd = control.fileno()
    os.closerange(3, control_fd)
    os.closerange(control_fd + 1, os.sysconf("SC_OPEN_MAX"))
    while True:
        request, descriptors = wire.receive_with(control, 1)
        if request is None:
            os._exit(0)
        rules = None
        if readable is not None:
            rules = landlock.make_rules([*readable, *namespaces.FACTS], namespaces.DEVICES, [folder])
        process = _fork_beside(slot)
        if process == 0:
            try:
                child.run(socket.socket(fileno=descriptors[0]), slot, folder, limits, confinement, rules)
            finally:  # a program broke it: the nursery's next steps are not for this process
                _kill(_getpid(), signal.SIGKILL)
        for descriptor in (*descriptors, *(() if rules is None else (rules,))):
            os.close(descriptor)
        wire.send(control, {"process": process})


def _fork_beside(slot: int) -> int:
    """Fork a child of the slot, which is this process's parent and can so wait for the child's end."""
    try:
        process = _clone(_CLONE_PARENT | signal.SIGCHLD)
    except OSError:  # unknown on this processor, or refused
        return _fork_twice(slot)
    if process == 0 or not processes.is_child(process):
        return process
    os.kill(process, signal.SIGKILL)  # a kernel that does not know the flag, as gVisor's, overlooks it
    os.waitpid(process, 0)
    return _fork_twice(slot)


def _fork_twice(slot: int) -> int:
    """The same by way of a process that ends: slots inherit orphans. It takes twice as long."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        process = os.fork()
        if process != 0:
            os.write(write, str(process).encode())
            os._exit(0)
        while os.getppid() != slot:
            time.sleep(0.0002)
        return 0
    os.close(write)  # or a fork that failed in between would be waited for without end
    os.waitpid(between, 0)
    process = int(os.read(read, 20))
    os.close(read)
    return process


def _clone(flags: int) -> int:
    """`os.fork` with flags of the system call `clone`. Raises OSError."""
    number, place = syscalls.here().numbers["clone"], _thread_number()
    if place is not None:
        flags |= _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID
    arguments = [ctypes.c_long(argument) for argument in syscalls.order_of_clone(flags, place or 0)]
    _python.PyOS_BeforeFork()
    process: int = _libc.syscall(ctypes.c_long(number), *arguments)
    if process == 0:
        _python.PyOS_AfterFork_Child()
        return 0
    _python.PyOS_AfterFork_Parent()
    if process < 0:
        raise OSError("clone")
    return process


def _thread_number() -> int | None:
    """Return where the C library notes the number of this thread, which a fork must change; None: nowhere."""
    address = ctypes.c_void_p()
    if _libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0) != 0 or not address.value:
        return None
    noted = ctypes.c_int.from_address(address.value).value == os.getpid()
    return address.value if noted else None
