"""A process for programs, as its slot sees it: started ahead, asked, copied, stopped, killed.

A process that keeps variables is stopped (SIGSTOP) whenever it is not asked something, with all its threads. Nothing
that it says is trusted: the number of a copy comes from the kernel, and a process that does not answer is killed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time

from . import processes, seccomp, wire
from .nursery import Nursery

LOOK_MS = 20  # how often the threads of a program are counted: none of the kernel's limits fits all levels
STOP_S = 1.0  # for all threads of a process to stop
STOP_POLL_S = 0.0002
LONGEST_WORD = 64  # bytes, of what a process says of a program's end
_FORKS_OF_A_COPY = 2  # see `child._copy`


class BrokenWorker(Exception):
    """The process did not come up, or does not serve requests any more. The message is for the logs."""


class Listener:
    """The descriptor on which a process and its copies ask about forks and signals (`seccomp.ask`).

    Closed with the last of them.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.users, self.forks = descriptor, 1, 0

    def answer(self, pid: int) -> None:
        """Let the process signal itself, and fork as often as was ordered."""
        question = seccomp.next_question(self.descriptor)
        if question is None:
            return
        allow = self.forks > 0 if question.is_fork else question.process == question.target == pid
        self.forks -= question.is_fork and allow
        seccomp.answer(self.descriptor, question, allow=allow)

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            os.close(self.descriptor)


class Worker:
    """`ended` can be polled for the end of the process."""

    def __init__(self, pid: int, control: socket.socket, keeps: bool) -> None:
        self.pid, self.control, self.keeps = pid, control, keeps
        self.listener: Listener | None = None
        self.ended = os.pidfd_open(pid)

    @classmethod
    def start(cls, nursery: Nursery, keeps: bool) -> Worker:
        """Fork it and return; `wait_ready` before its first program."""
        ours, theirs = socket.socketpair()
        with theirs:
            pid = nursery.start(theirs)
        ours.settimeout(wire.PATIENCE_S)
        return cls(pid, ours, keeps)

    def wait_ready(self) -> None:
        """Wait until it is ready. Raises `BrokenWorker` with what went wrong."""
        try:
            message, descriptors = wire.receive_with(self.control, 1)
            if descriptors:
                self.listener = Listener(descriptors[0])
                message = wire.receive(self.control)
        except (OSError, ValueError) as error:
            raise BrokenWorker(f"{type(error).__name__}: {error}") from error
        if message is None or "ready" not in message:
            raise BrokenWorker(str((message or {}).get("error", "it ended")))

    @property
    def asking(self) -> tuple[int, ...]:
        """Descriptors to poll while its program runs, in addition to `ended`."""
        if not self.keeps:
            return ()
        return (self.control.fileno(), *(() if self.listener is None else (self.listener.descriptor,)))

    def hear(self, ready: set[int]) -> int | None:
        """Answer its requests. Returns the exit code of its program, once it reports it."""
        if self.listener is not None and self.listener.descriptor in ready:
            self.listener.answer(self.pid)
        if not self.keeps or self.control.fileno() not in ready:
            return None
        rc = self._end_of_program()
        if rc is None:  # it closed the connection, or wrote nonsense
            os.kill(self.pid, signal.SIGKILL)
            self.keeps = False  # its end is what counts now
            return None
        return rc & 0xFF

    def _end_of_program(self) -> int | None:
        """The worker's complete message, if one is there now. A program can write here: it must neither keep the slot
        waiting for the rest of a message nor make it gather one that never ends."""
        try:
            data = self.control.recv(LONGEST_WORD, socket.MSG_DONTWAIT)
            size, body = wire.HEADER.size, data[wire.HEADER.size :]
            rc = wire.unpack(body).get("rc") if wire.HEADER.pack(len(body)) == data[:size] else None
        except (OSError, ValueError, AttributeError):
            return None
        return rc if isinstance(rc, int) else None

    def copy(self) -> Worker:
        """A process with the same variables; this one is stopped again. Raises `BrokenWorker`.

        The programs of this process can make it fork another process instead or in addition (`os.register_at_fork`):
        the slot looks for that.
        """
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            with theirs:
                wire.send(self.control, {}, [theirs.fileno()])
            pid = self._copied(ours)
            copy = Worker(pid, ours, self.keeps)
        except OSError as error:
            ours.close()
            raise BrokenWorker(f"{type(error).__name__}: {error}") from error
        except BrokenWorker:
            ours.close()
            raise
        finally:
            self.pause()
        ours.settimeout(wire.PATIENCE_S)
        if self.listener is not None:
            copy.listener = self.listener
            copy.listener.users += 1
        return copy

    def _copied(self, copy: socket.socket) -> int:
        """Wait for the first word of the copy; returns its number."""
        if self.listener is not None:
            self.listener.forks = _FORKS_OF_A_COPY
        self.resume()
        poller = select.poll()
        for readable in (copy.fileno(), self.ended, *self.asking[1:]):
            poller.register(readable, select.POLLIN)
        look = time.monotonic() + LOOK_MS / 1000
        deadline = time.monotonic() + wire.PATIENCE_S
        while (seconds_left := deadline - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poller.poll(min(seconds_left * 1000, LOOK_MS))}
            if copy.fileno() in ready:
                pid = wire.receive_credentials(copy)
                if pid is None or pid == self.pid or not processes.is_child(pid):
                    raise BrokenWorker("what copied itself is not a process of the program")
                self._refuse_threads({self.pid, pid})
                return pid
            if time.monotonic() > look:
                look += LOOK_MS / 1000
                self._refuse_threads(processes.descendants() or {self.pid})
            if self.ended in ready:
                raise BrokenWorker("it ended")
            self.hear(ready - {self.control.fileno()})
        raise BrokenWorker("it did not copy itself")

    def _refuse_threads(self, of: set[int]) -> None:
        """Programs can start them, and processes that do, while they are copied, too."""
        if any(map(processes.has_too_many_threads, of)):
            _signal(self.pid, signal.SIGKILL)
            raise BrokenWorker("it started too many threads")

    def pause(self) -> None:
        """Stop it, and wait until its last thread has stopped; a process that does not stop is killed."""
        _signal(self.pid, signal.SIGSTOP)
        if self.listener is not None:
            self.listener.forks = 0
        deadline = time.monotonic() + STOP_S
        while not processes.stands_still(self.pid):
            if time.monotonic() > deadline:
                _signal(self.pid, signal.SIGKILL)
                return
            time.sleep(STOP_POLL_S)

    def resume(self) -> None:
        _signal(self.pid, signal.SIGCONT)

    def end(self) -> tuple[int, float]:
        """Kill it, and what shares its session. Its exit status as `wait` gives it, and its processor time in s."""
        processes.kill_group(self.pid)
        _, code, usage = os.wait4(self.pid, 0)
        os.close(self.ended)
        self.control.close()
        if self.listener is not None:
            self.listener.release()
        return code, usage.ru_utime + usage.ru_stime


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
