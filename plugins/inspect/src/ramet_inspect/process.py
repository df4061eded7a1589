"""The process under Inspect's interpreter (`worker.py`), as Ramet's side sees it."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ramet import ConfigError, InfraError
from ramet_inspect.config import InspectTask

WORKER = Path(__file__).with_name("worker.py")
END_S = 10.0  # for a cancelled sample: Inspect closes its sandbox
LAST_WORDS = 2000  # characters of standard error in messages


def samples_of(config: InspectTask, where: str) -> list[dict[str, Any]]:
    """Return id, messages and target of the task's samples.

    Raises `ConfigError` for a task that cannot be loaded; `where` is the section of the configuration.
    """
    try:
        done = subprocess.run(
            _command(config, "list"), stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace"
        )
    except OSError as error:
        raise _no_python(config, where, error) from error
    try:
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        _check_first(lines[0], where)
    except (IndexError, ValueError) as error:
        raise _unreadable(config, where, done.stderr) from error
    return lines[1:]


class InspectProcess:
    """Runs samples of one task, any number at once, in one process and copies of it. It starts with the first sample.

    Threads read what it writes, so it belongs to no event loop. It ends with this process, however that ends.
    """

    def __init__(self, config: InspectTask, where: str) -> None:
        self._config, self._where = config, where
        self._starting = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._numbers = itertools.count()
        self._outcomes: dict[int, Future[Mapping[str, Any]]] = {}
        self._words = ""  # the end of its standard error

    async def run(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outcome of one sample (`worker.run_sample`).

        Raises `ConfigError` if the task cannot be loaded and `InfraError` if the process ends. Cancelled, it returns
        when Inspect has ended the sample.
        """
        process = await asyncio.to_thread(self._running)
        number, outcome = next(self._numbers), Future[Mapping[str, Any]]()
        self._outcomes[number] = outcome
        waiter = asyncio.wrap_future(outcome)
        try:
            self._send(process, {**request, "number": number})
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            with suppress(InfraError):  # it has ended
                self._send(process, {"number": number, "cancel": True})
            await asyncio.wait({waiter}, timeout=END_S)
            raise
        finally:
            self._outcomes.pop(number, None)
            if waiter.done() and not waiter.cancelled():
                waiter.exception()  # looked at, so that asyncio does not report it

    def close(self) -> None:
        """End the process and all samples."""
        process, self._process = self._process, None
        if process is not None:
            _input(process).close()
            process.wait()

    def _running(self) -> subprocess.Popen[str]:
        with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._process = self._start()
            return self._process

    def _start(self) -> subprocess.Popen[str]:
        try:
            process = subprocess.Popen(
                _command(self._config, "serve"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",  # what a task prints need not be a text
                start_new_session=True,  # Ctrl-C is for this process
            )
        except OSError as error:
            raise _no_python(self._config, self._where, error) from error
        assert process.stdout is not None and process.stderr is not None
        words = threading.Thread(target=self._keep_words, args=(process.stderr,), daemon=True)
        words.start()
        try:
            _check_first(json.loads(process.stdout.readline()), self._where)
        except ValueError as error:
            words.join(END_S)
            raise _unreadable(self._config, self._where, self._words) from error
        threading.Thread(target=self._read, args=(process,), daemon=True).start()
        return process

    def _keep_words(self, errors: IO[str]) -> None:
        with errors:
            for line in errors:
                self._words = (self._words + line)[-LAST_WORDS:]

    def _read(self, process: subprocess.Popen[str]) -> None:
        """Hand each outcome to its sample. At the end of the process those that are left have none."""
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                message = json.loads(line)
                if (outcome := self._outcomes.get(message.pop("number"))) is not None:
                    outcome.set_result(message)
        process.wait()
        for outcome in list(self._outcomes.values()):
            if not outcome.done():
                outcome.set_exception(
                    InfraError(f"Inspect's process ended (status {process.returncode}): {self._words}")
                )

    def _send(self, process: subprocess.Popen[str], message: Mapping[str, Any]) -> None:
        try:
            _input(process).write(json.dumps(message) + "\n")
            _input(process).flush()
        except (OSError, ValueError) as error:  # it has ended, or was closed
            raise InfraError(f"Inspect's process has ended: {error}") from error


def _input(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdin is not None
    return process.stdin


def _command(config: InspectTask, mode: str) -> list[str]:
    return [config.interpreter, str(WORKER), mode, json.dumps({"task": config.task, "args": config.args})]


def _check_first(message: Mapping[str, Any], where: str) -> None:
    if message["problem"] is not None:
        raise ConfigError(f"{where}.params: {message['problem']}")


def _no_python(config: InspectTask, where: str, error: OSError) -> ConfigError:
    return ConfigError(f"{where}.params.python: {config.interpreter!r} cannot be started: {error.strerror}")


def _unreadable(config: InspectTask, where: str, words: str) -> ConfigError:
    return ConfigError(f"{where}.params.python: {config.interpreter!r} did not list the samples: {words[-LAST_WORDS:]}")
