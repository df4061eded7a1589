"""The OpenEnv server of a process: its address, started if need be, and what it says of its actions.

The routes are in openenv 0.10.0, `openenv/core/env_server/http_server.py`: GET /health, GET /schema (JSON schemas
of action and observation) and POST /mcp (JSON-RPC; `tools/list` where actions are calls of tools).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from typing import IO, Any

from ramet import ConfigError, InfraError
from ramet.helpers import own_reaper
from ramet_openenv.config import PORT, OpenEnvConfig

INHERITED = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "USER")  # variables that programs need
LAST_LINES = 5  # of what a program wrote before it ended
LAST_CHARS = 400
MAX_REPLY = 16 << 20  # bytes
POLL_S = 0.1  # between two looks at a server that starts
READ_S = 1.0  # for the rest of what a program wrote before it ended; a child of it may hold the pipe


class OpenEnvServer:
    """The server that all rollouts of a process share. Its methods block, and may be called in any thread."""

    def __init__(self, config: OpenEnvConfig) -> None:
        self.config = config
        self._lock = threading.Lock()
        self._child: Child | None = None

    def url(self) -> str:
        """The address. A program that has not started yet, or has ended, is started. Raises `InfraError`."""
        if not self.config.command:
            return self.config.address
        with self._lock:
            if self._child is None or not self._child.is_running:
                self._child = Child(self.config)
                self._wait(self._child)
            return self._child.url

    def is_healthy(self, url: str) -> bool:
        """Whether the server at this address of a session serves."""
        try:
            self._object(f"{url}/health")
        except InfraError:
            return False
        return True

    def schema(self) -> dict[str, Any]:
        """The JSON schemas of its `action` and `observation`. Raises `InfraError`."""
        schemas = self._object(f"{self.url()}/schema")
        for part in ("action", "observation"):
            schema = schemas.get(part)
            if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
                raise InfraError(f"{self.config.name}: GET /schema has {part} {schema!r:.200}, not a schema of objects")
        return schemas

    def tools(self) -> list[dict[str, Any]]:
        """The tools of an environment whose actions are calls of tools. Raises `InfraError`."""
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
        reply = self._object(f"{self.url()}/mcp", request)
        result = reply.get("result")
        tools = result.get("tools") if isinstance(result, dict) else None
        if not isinstance(tools, list) or not all(map(_is_tool, tools)):
            raise InfraError(f"{self.config.name}: tools/list gave {json.dumps(reply)[:LAST_CHARS]}")
        return tools

    def _wait(self, child: Child) -> None:
        """Return once the program answers; end it otherwise."""
        ends_at = time.monotonic() + self.config.start_timeout_s
        while True:
            if not child.is_running:
                raise InfraError(f"{self.config.name}: the program ended with {child.exit_code}{child.last_words}")
            try:
                self._object(f"{child.url}/health", timeout_s=self.config.start_timeout_s)
                return
            except InfraError as error:
                if time.monotonic() > ends_at:
                    child.kill()
                    key = f"rollout_step.params.start_timeout_s={self.config.start_timeout_s:g}"
                    raise InfraError(f"{error} ({key}){child.last_words}") from error
            time.sleep(POLL_S)

    def _object(
        self, url: str, request: Mapping[str, Any] | None = None, *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        """The JSON object of a reply. A redirect is not followed: the headers are for this server."""
        body = None if request is None else json.dumps(request).encode()
        headers = {"Content-Type": "application/json", **self.config.headers}
        path = f"{self.config.name}: {'GET' if body is None else 'POST'} /{url.rpartition('/')[2]}"
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
        try:
            with opener.open(
                urllib.request.Request(url, body, headers), timeout=timeout_s or self.config.timeout_s
            ) as reply:
                value = json.loads(reply.read(MAX_REPLY))
        except urllib.error.HTTPError as error:
            raise InfraError(f"{path}: {error.code} {error.reason}") from error
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            raise InfraError(f"{path}: {getattr(error, 'reason', None) or error}") from error
        if not isinstance(value, dict):
            raise InfraError(f"{path} gave {type(value).__name__}, not a JSON object")
        return value


class Child:
    """A program that serves on a free port of the loopback. It ends with this process, however that ends."""

    def __init__(self, config: OpenEnvConfig) -> None:
        port = str(_free_port())
        self.url = f"http://127.0.0.1:{port}"
        self._said: deque[str] = deque(maxlen=LAST_LINES)
        inherited = {name: value for name, value in os.environ.items() if name in INHERITED}
        try:
            self._process = subprocess.Popen(
                [argument.replace(PORT, port) for argument in config.command],
                cwd=config.cwd,
                env={**inherited, **config.env, **own_reaper().tag()},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for this process, which then ends it
            )
        except OSError as error:
            raise ConfigError(f"rollout_step.params.command (or cwd={config.cwd}) does not start: {error}") from error
        assert self._process.stdout is not None
        self._reading = threading.Thread(
            target=self._read, args=(self._process.stdout,), name="ramet-openenv", daemon=True
        )
        self._reading.start()

    @property
    def is_running(self) -> bool:
        """Whether the program has not ended."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The program's exit code; None while it runs."""
        return self._process.poll()

    @property
    def last_words(self) -> str:
        """The end of what it wrote, for messages."""
        if not self.is_running:
            self._reading.join(READ_S)
        words = " ".join(" ".join(self._said).split())[-LAST_CHARS:]
        return f"; it said: {words}" if words else ""

    def kill(self) -> None:
        """End the program at once."""
        self._process.kill()
        self._process.wait()

    def _read(self, output: IO[str]) -> None:
        """Read all that it writes, so that it never waits for a full pipe."""
        with contextlib.suppress(OSError, ValueError):
            for line in iter(lambda: output.readline(1 << 16), ""):
                self._said.append(line)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _is_tool(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
