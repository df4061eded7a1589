"""A pool of processes that can be killed: what models and web pages can make hang or crash runs in them.

A process runs one module of a plugin, and talks in JSON lines through `Caller`: it says that it is ready, then answers
each request with one line. Threads wait for the processes, so a pool belongs to no event loop.

Why a request has no result decides what its caller makes of it. Work that used its CPU time up, or crashed its process,
is the request's fault (`ProcessLost.by_request`). A process that got no CPU time, or was killed for another reason, is
the host's: nothing was judged.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ramet.errors import InfraError

Allowance = Callable[[], AbstractContextManager[Mapping[str, Any]]]

COPY_ENDED = "copy_ended"
START_S = 120.0  # for the imports of a process on a busy machine
GRACE_S = 2.0  # from the end of a process's socket to its own
LARGEST_ANSWER = 64 << 20  # bytes
BY_REQUEST = ("SIGPROF", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")  # by name: not every system has all


class ProcessLost(Exception):
    """A request without result. `by_request`: the request ended the process, or its caller was cancelled."""

    def __init__(self, message: str, *, by_request: bool) -> None:
        super().__init__(message)
        self.by_request = by_request


class ProcessPool:
    """Pool of at most `size` processes of `python -m MODULE SOCKET ARGUMENT…`, started when needed and replaced.

    `deadline_s` is wall time. A module that calls `Caller.prepared` has `prepare_s` until then, and `deadline_s` from
    then on. `environment`: of the processes; None: this process's. A process is replaced after `most_requests`.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        size: int,
        deadline_s: float,
        prepare_s: float | None = None,
        environment: Mapping[str, str] | None = None,
        most_requests: int | None = None,
    ) -> None:
        self.deadline_s, self.prepare_s = deadline_s, prepare_s
        self._module, self._arguments, self._environment = module, arguments, environment
        self._most_requests = most_requests
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="ramet-process-pool")
        self._idle: list[_Process] = []
        self._calls: set[_PoolCall] = set()
        self._lock = threading.Lock()

    async def ask(self, request: Mapping[str, Any], allowance: Allowance = lambda: nullcontext({})) -> Any:
        """Return the result. Raises `ProcessLost`, and `InfraError` if a process does not start.

        A call that is cancelled ends its process at once. `allowance` is entered in a thread when a process is free: it
        gives more of the request, and sees `ProcessLost` before the thread begins another one.
        """
        call = _PoolCall()
        self._calls.add(call)
        try:
            return await asyncio.wrap_future(self._threads.submit(self._answer, call, request, allowance))
        except asyncio.CancelledError:
            call.cancelled = True
            self._end(call)
            raise
        finally:
            self._calls.discard(call)

    async def aclose(self) -> None:
        """End the processes, without waiting for what they work on: a run that was interrupted ends now."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for call in list(self._calls):
            self._end(call)
        await asyncio.to_thread(self._threads.shutdown)
        while self._idle:
            self._idle.pop().close()

    def _end(self, call: _PoolCall) -> None:
        with self._lock:
            call.ended = True
            if call.process is not None:
                call.process.kill()

    def _answer(self, call: _PoolCall, request: Mapping[str, Any], allowance: Allowance) -> Any:
        """Run one request in a thread of the pool."""
        process = self._process_for(call)
        try:
            process.wait_ready()
            with allowance() as more:
                return self._result(call, process, {**request, **more})
        finally:
            with self._lock:
                call.process = None
            if process.is_free and process.n_requests != self._most_requests:
                self._idle.append(process)
            else:
                process.close()

    def _process_for(self, call: _PoolCall) -> _Process:
        with self._lock:
            while self._idle and not self._idle[-1].is_running:
                self._idle.pop().close()
            if not self._idle:
                self._idle.append(_Process(self._module, self._arguments, self._environment))
            call.process = self._idle.pop()
            if call.ended:
                call.process.kill()
            return call.process

    def _result(self, call: _PoolCall, process: _Process, request: Mapping[str, Any]) -> Any:
        try:
            return process.ask(request, self.prepare_s, self.deadline_s)
        except (OSError, EOFError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise ProcessLost(f"no result within {self.deadline_s:g} s", by_request=False) from error
            by_request = call.cancelled or process.was_ended_by_its_work()
            raise ProcessLost("the process ended", by_request=by_request) from error


class _PoolCall:
    """A request and the process that works on it. `ended`: its process is to be killed, or was."""

    def __init__(self) -> None:
        self.process: _Process | None = None
        self.ended = self.cancelled = False


class _Process:
    """A process that is running, with this end of its socket. Raises `InfraError` if it cannot be started."""

    def __init__(self, module: str, arguments: Sequence[str], environment: Mapping[str, str] | None) -> None:
        self.n_requests = 0
        self.is_free = False  # for a request
        self._module = module
        self._is_prepared = False  # what the newest request takes from here on is its own doing
        self._ended_by = 0  # signal that ended the copy which worked
        self._received = bytearray()
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    # -P: no module of the working directory is imported
                    [sys.executable, "-P", "-m", module, str(theirs.fileno()), *arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    # With one order of sets, equal requests have equal results.
                    env={**(os.environ if environment is None else environment), "PYTHONHASHSEED": "0"},
                )
            except OSError as error:
                raise InfraError(f"the process {module} cannot be started: {error}") from error

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self) -> None:
        if self.n_requests:
            return
        try:
            said = self._receive(time.monotonic() + START_S)
        except (OSError, EOFError, ValueError) as error:
            raise InfraError(f"the process {self._module} did not start: {error}") from error
        if said is not None:
            raise InfraError(f"the process {self._module} cannot work: {said}")

    def ask(self, request: Mapping[str, Any], prepare_s: float | None, deadline_s: float) -> Any:
        """Return the reply.

        Raises OSError, EOFError or ValueError without one; then `was_ended_by_its_work` says why.
        """
        self.n_requests += 1
        self.is_free = self._is_prepared = False
        ends_at = time.monotonic() + (deadline_s if prepare_s is None else prepare_s)
        self._socket.settimeout(ends_at - time.monotonic())
        self._socket.sendall(json.dumps(request).encode("ascii") + b"\n")
        if prepare_s is not None:
            self._receive(ends_at)
            ends_at = time.monotonic() + deadline_s
        self._is_prepared = True
        result = self._receive(ends_at)
        self.is_free = not self._received  # more than one answer: the next one would be taken for another request's
        return result

    def was_ended_by_its_work(self) -> bool:
        """Whether the CPU time of the work was over, or a library crashed on it."""
        if not self.is_free:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._ended_by = -self._process.wait(GRACE_S)  # its socket closes a moment before it is gone
        return self._is_prepared and self._ended_by in {getattr(signal, name, None) for name in BY_REQUEST}

    def close(self) -> None:
        self._socket.close()
        self.kill()
        self._process.wait()

    def kill(self) -> None:
        """The process, and the processes that it has started."""
        if self._process.returncode is None:  # otherwise its id may be another process's by now
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def _receive(self, ends_at: float) -> Any:
        while b"\n" not in self._received:
            self._socket.settimeout(max(1e-3, ends_at - time.monotonic()))
            part = self._socket.recv(1 << 20)
            if not part or len(self._received) > LARGEST_ANSWER:
                raise EOFError("the process ended" if not part else "the answer is too large")
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        answer = json.loads(line)
        if isinstance(answer, dict) and COPY_ENDED in answer:
            self._ended_by, self.is_free = answer[COPY_ENDED], True
            raise EOFError("the copy ended")
        return answer


class Caller:
    """The process that asks, as the process of the pool sees it."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=int(sys.argv[1]))
        self._lines = self._socket.makefile("rw", encoding="ascii")

    def ready(self, problem: str | None = None) -> None:
        """Send the first message. `problem`: why this process cannot work."""
        self.reply(problem)

    def prepared(self) -> None:
        """Send, before the result and if the pool has `prepare_s`, that the request's own work begins now."""
        self.reply(None)

    def copy_ended(self, signal_number: int) -> None:
        """Send, instead of a result, that a copy of this process which did the work has ended; 0: by itself."""
        self.reply({COPY_ENDED: signal_number})

    def reply(self, message: object) -> None:
        self._lines.write(json.dumps(message) + "\n")
        self._lines.flush()

    def requests(self) -> Iterator[Any]:
        for line in self._lines:
            yield json.loads(line)

    def end_with(self) -> None:
        """Kill this process, and the processes that it has started, as soon as the other end is closed, however that
        happened, also in the middle of its work.
        """
        hung_up = select.poll()
        hung_up.register(self._socket.fileno(), 0)  # a closed end is always reported

        def wait() -> None:
            hung_up.poll()
            os.killpg(0, signal.SIGKILL)

        threading.Thread(target=wait, name="ramet-end-with-caller", daemon=True).start()
