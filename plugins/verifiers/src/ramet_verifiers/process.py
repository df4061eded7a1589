"""The worker as a child process: how it is started, what it is sent, and what becomes of it.

One process runs all episodes of a rollout worker. It ends when its input does, and so with this process too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramet import ConfigError, InfraError
from ramet_verifiers.config import VerifiersOptions

SCRIPT = Path(__file__).with_name("worker.py")
MAX_LINE = 64 << 20  # bytes of a message
LAST_WORDS = 2000  # bytes of what a worker that failed wrote to its standard error
CHUNK = 1 << 16
CLOSE_TIMEOUT_S = 5.0  # for an end by itself, before it is killed
KILL_TIMEOUT_S = 2.0  # for what is left of it then, such as a program that has its standard error
MAX_LOST = 2  # workers that may end one after the other without a complete episode in between


def check(options: VerifiersOptions, key: str) -> None:
    """Raise `ConfigError` for options that a worker cannot start with. `key` is where they are set."""
    if not options.environment:
        raise ConfigError(f"{key}.environment is not set: name a package of an environment")
    if shutil.which(options.python) is None:
        raise ConfigError(f"{key}.python is {options.python!r}; allowed: the path of a Python that has verifiers")
    if absent := [folder for folder in options.path if not Path(folder).is_dir()]:
        raise ConfigError(f"{key}.path names {absent[0]!r}, which is not a folder")


def command(options: VerifiersOptions, mode: str, script: Path) -> list[str]:
    """Program and arguments. The environment does not import modules of this package's folder (`-P`), and what it
    prints is there if it dies (`-u`).
    """
    return [options.python, "-P", "-u", str(script), mode]


def environ(options: VerifiersOptions) -> dict[str, str]:
    """Variables of this process without the ones of its Python; programs next to `python` are found first."""
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    folder = os.path.dirname(os.path.abspath(shutil.which(options.python) or options.python))
    path = {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, options.path))} if options.path else {}
    return own | path | {"PATH": f"{folder}{os.pathsep}{own.get('PATH', os.defpath)}"}


def settings(options: VerifiersOptions, arguments: Mapping[str, Any], limit: int | None = None) -> bytes:
    """The worker's first message."""
    return _line({"environment": options.environment, "arguments": arguments, "limit": limit})


def list_tasks(
    options: VerifiersOptions, arguments: Mapping[str, Any], limit: int | None, script: Path = SCRIPT
) -> Iterator[dict[str, Any]]:
    """Yield `messages` and `data` of each task, from a worker of its own.

    Raises `ConfigError` if the environment cannot be loaded, `InfraError` if the worker ends or takes too long.
    """
    try:
        done = subprocess.run(
            command(options, "tasks", script),
            input=settings(options, arguments, limit),
            env=environ(options),
            capture_output=True,
            timeout=options.load_timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise InfraError(f"{_who(options)}: no tasks within {options.load_timeout_s:g} s (load_timeout_s)") from error
    except OSError as error:
        raise ConfigError(f"{_who(options)}: {options.python} cannot be started: {error.strerror}") from error
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    last = messages[-1] if messages else {}
    if "failed" in last:
        raise ConfigError(f"{_who(options)} cannot be loaded: {last['failed']}")
    if "end" not in last:
        raise InfraError(f"{_who(options)}: the worker ended with code {done.returncode}{_said(done.stderr)}")
    return (message["task"] for message in messages[:-1])


class EpisodeWorker:
    """Runs episodes in one worker process. The first episode starts it, and the next one again if it has ended.

    Belongs to one event loop.
    """

    def __init__(self, options: VerifiersOptions, script: Path = SCRIPT) -> None:
        self._options, self._script = options, script
        self._owner = os.getpid()
        self._starting = asyncio.Lock()
        self._process: _WorkerProcess | None = None
        self._n_lost, self._end = 0, ""  # workers that ended since the last complete episode, and how the last one did

    async def run(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The episode's report. Cancelled, it ends the episode in the worker.

        Raises `InfraError` if the environment cannot be loaded, the worker ends or the episode cannot be run.
        """
        process = await self._running()
        answer = await process.ask(request)
        if "failed" in answer:
            raise InfraError(f"{_who(self._options)}: {answer['failed']}")
        self._n_lost = 0
        episode: dict[str, Any] = answer["episode"]
        return episode

    async def _running(self) -> _WorkerProcess:
        async with self._starting:
            if self._process is not None and self._process.end:
                self._lost(self._process.end)
                self._process = None
            if self._process is None:
                if self._n_lost >= MAX_LOST:
                    raise InfraError(f"{self._end}; it is not started again, since no episode was complete before")
                try:
                    self._process = await _WorkerProcess.start(self._options, self._script)
                except InfraError as error:
                    self._lost(str(error))
                    raise
            return self._process

    def _lost(self, end: str) -> None:
        self._n_lost, self._end = self._n_lost + 1, end

    async def aclose(self) -> None:
        """End the worker with its episodes."""
        if self._process is not None:
            await self._process.aclose()

    def abandon(self) -> None:
        """End the worker from another event loop; in a child of its process, leave it."""
        if self._process is not None and os.getpid() == self._owner:
            self._process.kill()


class _WorkerProcess:
    """A worker that has loaded its environment."""

    def __init__(self, process: asyncio.subprocess.Process, who: str) -> None:
        self._process, self._who = process, who
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._n_asked = 0
        self._said = b""
        self._reading = asyncio.create_task(self._read())
        self.end = ""  # how it ended, in words

    @classmethod
    async def start(cls, options: VerifiersOptions, script: Path) -> _WorkerProcess:
        """Raises `InfraError` if it does not load the environment."""
        try:
            started = await asyncio.create_subprocess_exec(
                *command(options, "serve", script),
                env=environ(options),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                limit=MAX_LINE,
                start_new_session=True,  # Ctrl-C is for this process, which ends the worker
            )
        except OSError as error:
            raise InfraError(f"{_who(options)}: {options.python} cannot be started: {error.strerror}") from error
        process = cls(started, _who(options))
        try:
            process._write(settings(options, options.arguments))
            async with asyncio.timeout(options.load_timeout_s):
                await asyncio.shield(process._ready)
        except TimeoutError as error:
            process.kill()
            raise InfraError(
                f"{_who(options)}: not loaded within {options.load_timeout_s:g} s (load_timeout_s)"
            ) from error
        except BaseException:
            process.kill()
            raise
        return process

    async def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The worker's answer. Raises `InfraError` if it ends before."""
        if self.end:
            raise InfraError(self.end)
        self._n_asked += 1
        id = self._n_asked
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[id] = answer
        try:
            self._write(_line({"run": id, **request}))
            return await answer
        except asyncio.CancelledError:
            self._write(_line({"cancel": id}))
            raise
        finally:
            del self._answers[id]

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(line)

    async def _read(self) -> None:
        """Deliver answers until the worker ends; then every request that waits fails."""
        assert self._process.stdout is not None
        listening = asyncio.create_task(self._listen())
        try:
            while line := await self._process.stdout.readline():
                self._take(json.loads(line))
        except ValueError as error:
            self.end = f"{self._who}: the worker's answer cannot be read: {error}"
            self.kill()
        await asyncio.wait({listening}, timeout=KILL_TIMEOUT_S)
        code = await self._process.wait()
        self.end = self.end or f"{self._who}: the worker ended with code {code}{_said(self._said)}"
        waiting_for: list[asyncio.Future[Any]] = [self._ready, *self._answers.values()]
        for waiting in waiting_for:
            if not waiting.done():
                waiting.set_exception(InfraError(self.end))
                waiting.exception()  # looked at, so that asyncio does not report it

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            if (answer := self._answers.get(message["id"])) is not None and not answer.done():
                answer.set_result(message)
        elif "failed" in message:
            self.end = f"{self._who} cannot be loaded: {message['failed']}"
        elif not self._ready.done():
            self._ready.set_result(None)

    async def _listen(self) -> None:
        """Keep the end of what it writes to its standard error."""
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(CHUNK):
            self._said = (self._said + data)[-LAST_WORDS:]

    async def aclose(self) -> None:
        """End its input, wait, and kill it if it stays."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await asyncio.wait({self._reading}, timeout=CLOSE_TIMEOUT_S)
        if not self._reading.done():
            self.kill()
            await asyncio.wait({self._reading}, timeout=KILL_TIMEOUT_S)

    def kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _who(options: VerifiersOptions) -> str:
    return f"verifiers environment {options.environment!r}"


def _said(stderr: bytes) -> str:
    words = " ".join(stderr[-LAST_WORDS:].decode(errors="replace").split())
    return f"; it said: {words}" if words else ""


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"
