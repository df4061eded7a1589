"""One program, as its slot sees it: from the moment it is sent to its process until it has ended or must be killed."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import time
from typing import Any, NamedTuple

from . import processes, wire
from .child import Limits
from .worker import LOOK_MS, Worker

TIMEOUT, OUTPUT_LIMIT, THREAD_LIMIT, GONE, DONE = "timeout", "output_limit", "thread_limit", "gone", "done"


class Capture:
    """One output stream: keeps the beginning, counts everything."""

    def __init__(self, keep: int) -> None:
        self.keep, self.kept, self.total = keep, bytearray(), 0
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)

    def read(self, limit: int) -> bool:
        """Take the available bytes, at most `limit` in all. False: the stream has ended."""
        while self.total <= limit:
            try:
                data = os.read(self.read_end, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.total += len(data)
            self.kept += data[: self.keep - len(self.kept)]
        return True

    def close(self) -> None:
        os.close(self.read_end)

    @property
    def text(self) -> str:
        return self.kept.decode("utf-8", "replace")


class Clock:
    """The time that a program has used: its computing and sleeping, without the waits of a busy host.

    So every host stops a program at the same point. If the host does not tell how long the program waited for a
    processor, only its computing time counts. Wall time is the last resort.
    """

    def __init__(self, process: int, limits: Limits) -> None:
        self.process, self.limits = process, limits
        self.started = time.monotonic()
        self.cpu = processes.cpu_s(process) or 0.0
        self.waited = processes.waited_s(process)

    def left_s(self) -> float:
        """Seconds for which it certainly need not be stopped; 0 or less: now."""
        wall = time.monotonic() - self.started
        cpu = self.cpu_s()
        waited = None if self.waited is None else processes.waited_s(self.process)
        own_s = cpu if waited is None or self.waited is None else wall - (waited - self.waited)
        return min(self.limits.seconds - max(own_s, cpu), self.limits.wall_seconds - wall)

    def cpu_s(self) -> float:
        return (processes.cpu_s(self.process) or self.cpu) - self.cpu


class End(NamedTuple):
    """`verdict` None: the process ended by itself. `rc`: its report on its program, if it lives on."""

    verdict: str | None
    rc: int | None = None


class Call:
    """A program in the process of `worker`."""

    def __init__(self, worker: Worker, code: str, limits: Limits) -> None:
        self.worker, self.limits = worker, limits
        self.out, self.err = Capture(limits.stdout), Capture(limits.stderr)
        streams = [self.out.write_end, self.err.write_end]
        self.clock = Clock(worker.pid, limits)
        try:
            wire.send(worker.control, {"code": code}, streams)
        except OSError:  # killed meanwhile: that is seen at once
            pass
        for end in streams:
            os.close(end)

    def watch(self, client: socket.socket) -> End:
        """Wait for the end, or until it must be stopped."""
        poller = select.poll()
        wanted = (self.worker.ended, client.fileno(), self.out.read_end, self.err.read_end)
        for readable in (*wanted, *self.worker.asking):
            poller.register(readable, select.POLLIN)
        while True:
            seconds_left = self.clock.left_s()
            if seconds_left <= 0:
                return End(TIMEOUT)
            ready = {descriptor for descriptor, _ in poller.poll(min(LOOK_MS, max(1, math.ceil(seconds_left * 1000))))}
            if client.fileno() in ready:
                return End(GONE)
            for stream in (self.out, self.err):
                if stream.read_end in ready and not stream.read(self.limits.output):
                    poller.unregister(stream.read_end)
            if self.too_much:
                return End(OUTPUT_LIMIT)
            if processes.has_too_many_threads(self.worker.pid):
                return End(THREAD_LIMIT)
            if self.worker.ended in ready:
                return End(None)
            rc = self.worker.hear(ready)
            if rc is not None:
                return End(DONE, rc)

    def collect(self) -> None:
        """Take the rest of the output. The process has ended, or is stopped."""
        for stream in (self.out, self.err):
            stream.read(self.limits.output)
            stream.close()

    @property
    def too_much(self) -> bool:
        return self.out.total + self.err.total > self.limits.output

    def reply(self, status: str, rc: int | None, cpu_s: float, *, restored: bool) -> dict[str, Any]:
        return {
            "status": status,
            "rc": rc,
            "stdout": self.out.text,
            "stderr": self.err.text,
            "truncated_stdout": self.out.total > self.out.keep,
            "truncated_stderr": self.err.total > self.err.keep,
            "wall_ms": (time.monotonic() - self.clock.started) * 1000,
            "cpu_ms": cpu_s * 1000,
            "restored": restored,
        }


def status_of(code: int, cpu_s: float, cpu_limit_s: int) -> str:
    """The outcome of a program, from its process's status of `wait`."""
    if os.WIFEXITED(code):
        return "ok" if os.WEXITSTATUS(code) == 0 else "error"
    killer = os.WTERMSIG(code)
    if killer == signal.SIGXCPU or (killer == signal.SIGKILL and cpu_s >= cpu_limit_s):
        return "cpu_limit"
    if killer == signal.SIGXFSZ:
        return "file_limit"
    return "killed" if killer == signal.SIGKILL else "signal"
