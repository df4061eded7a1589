"""Scorers in processes of their own, with deadlines. Threads wait for the processes, so no event loop is bound.

A process runs a module of this package: it says `"ready"`, then answers each JSON line with two, `"prepared"` and the
result. If a copy of it does the work, `{"ended_by": SIGNAL}` in place of either says that the copy has ended, and that
the next one waits for work. Why there is no result decides what happens. Work that used its CPU time up, or crashed its
process, is the answer's doing (`Lost.by_request`). A process that got no CPU time, or that somebody killed, is the
host's: not judged.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ramet import InfraError

START_S = 120.0
GRACE_S = 2.0  # from the end of a process's socket to its own
ENDED_BY = "ended_by"
OF_THE_REQUEST = {signal.SIGPROF, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL}


class Lost(Exception):
    """A request without result. `by_request`: what was asked ended the process."""

    def __init__(self, message: str, *, by_request: bool) -> None:
        super().__init__(message)
        self.by_request = by_request


class _CopyEnded(Exception):
    """What worked in the process has ended by this signal; 0: by itself."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def end_with(client: socket.socket) -> None:
    """Kill this process and what it has started as soon as the other end is closed, also in the middle of its work.

    Called in the process. The other end closes when the process that asks has ended, however that happened.
    """
    hung_up = select.poll()
    hung_up.register(client.fileno(), 0)  # a closed end is always reported

    def wait() -> None:
        hung_up.poll()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="ramet-rewards-end", daemon=True).start()


class ScorerPool:
    """`workers` processes of `python -m MODULE SOCKET ARGUMENT…`, started when needed and replaced when they ended."""

    def __init__(self, module: str, arguments: Sequence[str] = (), *, workers: int, deadline_s: float) -> None:
        self.deadline_s = deadline_s  # wall time from "prepared" to the result
        self._command = [sys.executable, "-P", "-m", module]  # -P: no module of the working directory is imported
        self._arguments = list(arguments)
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="ramet-rewards")
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._busy: set[_Worker] = set()
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, request: Mapping[str, Any], when_sent: Callable[[], Mapping[str, Any]] = dict) -> Future[Any]:
        """The result; raises `Lost`, and `InfraError` if the process did not come up.

        `when_sent`: more of the request, asked for in a thread when a process has become free for it.
        """
        return self._threads.submit(self._ask, dict(request), when_sent)

    def close(self) -> None:
        """End the processes. Nobody waits for what they work on: a run that was interrupted ends now."""
        with self._lock:
            self._closed = True
            for worker in self._busy:
                worker.kill()
        self._threads.shutdown(cancel_futures=True)
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def _ask(self, request: dict[str, Any], when_sent: Callable[[], Mapping[str, Any]]) -> Any:
        worker = self._take()
        with self._lock:
            self._busy.add(worker)
            if self._closed:
                worker.kill()
        try:
            result = worker.ask(json.dumps({**request, **when_sent()}) + "\n", self.deadline_s)
        except _CopyEnded as error:
            by_request = worker.prepared and error.number in OF_THE_REQUEST
            self._idle.put(worker)
            raise Lost("the process ended", by_request=by_request) from error
        except (OSError, EOFError) as error:
            if isinstance(error, TimeoutError):
                worker.close()
                raise Lost(f"no result within {self.deadline_s:g} s", by_request=False) from error
            raise Lost("the process ended", by_request=worker.ended_by_the_request()) from error
        finally:
            with self._lock:
                self._busy.discard(worker)
        self._idle.put(worker)
        return result

    def _take(self) -> _Worker:
        with contextlib.suppress(queue.Empty):
            while True:
                worker = self._idle.get_nowait()
                if worker.alive:
                    return worker
                worker.close()
        return _Worker(self._command, self._arguments)


class _Worker:
    """A running process. Raises `InfraError` if it does not come up."""

    def __init__(self, command: list[str], arguments: list[str]) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": "0"},  # sets have one order, so the same answer has one score
            )
        self.prepared = False  # the newest request: what it takes from here on is the answer's doing
        self._socket, self._lines = ours, ours.makefile("rw", encoding="ascii")
        try:
            self._receive(START_S)
        except (OSError, EOFError) as error:
            self.close()
            raise InfraError(f"the process {command[-1]} did not start") from error

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, line: str, deadline_s: float) -> Any:
        """Raises OSError or EOFError without a result; then `ended_by_the_request` says why and ends the process.

        `_CopyEnded`: there is none either, and the process serves on.
        """
        self.prepared = False
        self._socket.settimeout(START_S)
        self._lines.write(line)
        self._lines.flush()
        self._receive(START_S)
        self.prepared = True
        return self._receive(deadline_s)

    def ended_by_the_request(self) -> bool:
        """Whether the process ended of its work: its CPU time was over, or a library crashed on it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)  # its socket closes a moment before it is gone
        code = self._process.poll()
        self.close()
        return self.prepared and code is not None and -code in OF_THE_REQUEST

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._lines.close()
        self._socket.close()
        self.kill()
        self._process.wait()

    def kill(self) -> None:
        """The process, and what it has started itself."""
        if self._process.returncode is None:  # else its id may be another process's by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _receive(self, timeout_s: float) -> Any:
        self._socket.settimeout(timeout_s)
        line = self._lines.readline()
        if not line:
            raise EOFError("the process ended")
        found = json.loads(line)
        if isinstance(found, dict) and ENDED_BY in found:
            raise _CopyEnded(found[ENDED_BY])
        return found
