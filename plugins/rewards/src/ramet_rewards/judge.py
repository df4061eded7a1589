"""Comparing formulas in processes with a limit of CPU time. Threads wait for the processes, so no event loop is bound.

Why there is no verdict decides what happens. An answer that used its CPU time up, or that crashed the process which
compared it, is wrong. A process that got no CPU time, or that somebody killed, is the host's doing: not judged.
"""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ramet import InfraError

START_S = 120.0
PATIENCE = 10.0  # wall time waited for, as a multiple of the CPU time allowed
GRACE_S = 2.0  # on top of it
OF_THE_ANSWER = {signal.SIGPROF, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


class Judge:
    """`workers` processes, started when needed and replaced when they ended."""

    def __init__(self, workers: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="ramet-math")
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()

    def submit(self, golds: Sequence[str], answer: str) -> Future[bool | None]:
        """Is the answer equal to a gold answer? None: not judged, by no fault of the answer."""
        return self._threads.submit(self._compare, list(golds), answer)

    def close(self) -> None:
        """End the processes, after the comparisons that are running."""
        self._threads.shutdown()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def _compare(self, golds: list[str], answer: str) -> bool | None:
        worker = self._take()
        try:
            verdict = worker.ask({"golds": golds, "answer": answer, "timeout_s": self.timeout_s}, self.timeout_s)
        except (OSError, EOFError):
            return False if worker.ended_by_the_answer() else None
        self._idle.put(worker)
        return verdict

    def _take(self) -> _Worker:
        with contextlib.suppress(queue.Empty):
            while True:
                worker = self._idle.get_nowait()
                if worker.alive:
                    return worker
                worker.close()
        return _Worker()


class _Worker:
    """A running process. Raises `InfraError` if it does not come up."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "ramet_rewards.worker", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
            )
        self._at_answer = False  # the gold answers are parsed
        self._socket, self._lines = ours, ours.makefile("rw", encoding="ascii")
        try:
            self._receive(START_S)
        except (OSError, EOFError) as error:
            self.close()
            raise InfraError("the process that compares formulas did not start") from error

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: dict[str, object], timeout_s: float) -> bool:
        """Raises OSError or EOFError without a verdict; then `ended_by_the_answer` tells why and ends the process."""
        self._at_answer = False
        self._socket.settimeout(START_S)
        self._lines.write(json.dumps(request) + "\n")
        self._lines.flush()
        self._receive(START_S)
        self._at_answer = True
        return bool(self._receive(PATIENCE * timeout_s + GRACE_S))

    def ended_by_the_answer(self) -> bool:
        """Whether the process ended of what it compared: its CPU time was over, or a library crashed on it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)  # its socket closes a moment before it is gone
        code = self._process.poll()
        self.close()
        return self._at_answer and code is not None and -code in OF_THE_ANSWER

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._lines.close()
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _receive(self, timeout_s: float) -> object:
        self._socket.settimeout(timeout_s)
        line = self._lines.readline()
        if not line:
            raise EOFError("the process ended")
        return json.loads(line)
