"""A slot: runs one program after the other for the client, each in a child of its own.

The slot owns the deadline, the pipes and the clean-up. It lives as long as its socket: end-of-file means that the
client is gone or has given up the call, and the slot ends with everything it started.
"""

from __future__ import annotations

import errno
import math
import os
import select
import signal
import socket
import time
from typing import Any

from . import child, processes, scratch, wire

TIMEOUT, OUTPUT_LIMIT, GONE = "timeout", "output_limit", "gone"


class Capture:
    """One output stream: keeps the beginning, counts everything."""

    def __init__(self, keep: int) -> None:
        self.keep, self.kept, self.total = keep, bytearray(), 0
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)

    def read(self, limit: int) -> bool:
        """Take what is there, at most `limit` bytes in all. False: the stream has ended."""
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


class Call:
    """One program, from the fork until it is reaped."""

    def __init__(self, code: str, timeout_s: float, folder: str, limits: child.Limits) -> None:
        self.limits, self.timeout_s, self.cpu_s = limits, timeout_s, math.ceil(timeout_s) + 1
        self.out, self.err = Capture(limits.stdout), Capture(limits.stderr)
        setup, setup_write = os.pipe()
        streams = child.Streams(self.out.write_end, self.err.write_end, setup_write)
        slot = os.getpid()
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            child.run(code, folder, streams, limits, self.cpu_s, slot)
        for end in streams:
            os.close(end)
        with open(setup, "rb") as report:  # ends when the program starts
            self.setup_error = report.read().decode()

    def watch(self, client: socket.socket) -> str | None:
        """Wait for the end; returns why the program must be killed, None if it ended by itself."""
        ended = os.pidfd_open(self.pid)
        poller = select.poll()
        for readable in (ended, client.fileno(), self.out.read_end, self.err.read_end):
            poller.register(readable, select.POLLIN)
        try:
            while True:
                left = self.started + self.timeout_s - time.monotonic()
                if left <= 0:
                    return TIMEOUT
                ready = {descriptor for descriptor, _ in poller.poll(math.ceil(left * 1000))}
                if client.fileno() in ready:
                    return GONE
                for stream in (self.out, self.err):
                    if stream.read_end in ready and not stream.read(self.limits.output):
                        poller.unregister(stream.read_end)
                if self._too_much():
                    return OUTPUT_LIMIT
                if ended in ready:
                    return None
        finally:
            os.close(ended)

    def finish(self, verdict: str | None) -> dict[str, Any]:
        """Kill what is left, collect output and exit code."""
        processes.kill_group(self.pid)
        _, code, usage = os.wait4(self.pid, 0)
        wall_s, cpu_s = time.monotonic() - self.started, usage.ru_utime + usage.ru_stime
        if processes.has_children() and not processes.kill_children():
            raise RuntimeError("processes of the program could not be killed")
        for stream in (self.out, self.err):
            stream.read(self.limits.output)
            stream.close()
        if verdict is None and self._too_much():
            verdict = OUTPUT_LIMIT
        status = "setup_error" if self.setup_error else verdict or _status(code, cpu_s, self.cpu_s)
        return {
            "status": status,
            "rc": os.waitstatus_to_exitcode(code),
            "stdout": self.out.text,
            "stderr": self.setup_error or self.err.text,
            "truncated_stdout": self.out.total > self.out.keep,
            "truncated_stderr": self.err.total > self.err.keep,
            "wall_ms": wall_s * 1000,
            "cpu_ms": cpu_s * 1000,
        }

    def _too_much(self) -> bool:
        return self.out.total + self.err.total > self.limits.output


def _status(code: int, cpu_s: float, cpu_limit_s: int) -> str:
    if os.WIFEXITED(code):
        return "ok" if os.WEXITSTATUS(code) == 0 else "error"
    killer = os.WTERMSIG(code)
    if killer == signal.SIGXCPU or (killer == signal.SIGKILL and cpu_s >= cpu_limit_s):
        return "cpu_limit"
    if killer == signal.SIGXFSZ:
        return "file_limit"
    return "killed" if killer == signal.SIGKILL else "signal"


def serve(client: socket.socket, folder: str, limits: child.Limits) -> None:
    """Answer calls until the client is gone."""
    processes.become_subreaper()
    try:
        while True:
            wire.send(client, {"ready": True})
            request = wire.receive(client)
            if request is None:
                return
            os.makedirs(folder, 0o700, exist_ok=True)
            call = Call(request["code"], request["timeout_s"], folder, limits)
            verdict = call.watch(client)
            reply = call.finish(verdict)
            if verdict == GONE:
                return
            wire.send(client, reply)
            scratch.empty(folder)  # kept while it serves: making and removing folders is slow on some disks
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise
    finally:
        scratch.remove(folder)
