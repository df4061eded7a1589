"""A session with an OpenEnv server: a WebSocket, for which the server has an environment of its own.

The protocol, as in openenv 0.10.0 (`openenv/core/env_server/http_server.py`, `websocket_endpoint`, and the messages
`WS…` of `types.py`): requests `{"type": "reset", "data": {…}}` and `{"type": "step", "data": ACTION}` are answered by
`{"type": "observation", "data": {"observation": {…}, "reward": …, "done": …}}`, or by `{"type": "error", "data":
{"code": …, "message": …}}`. A server without a free place accepts the connection, sends `CAPACITY_REACHED` and closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from ramet import InfraError

MAX_MESSAGE = 64 << 20  # bytes
CLOSE_S = 5.0  # for the server's part of the end
MAX_REWARD = 3e38  # rewards become float32
# How openenv 0.10.0 fails at an action that a validator of its own refused: it cannot write that validator's exception
# as JSON (`e.errors()` in the handler of `ValidationError`), answers with `SESSION_ERROR` and ends the session.
UNWRITABLE = "Unable to serialize unknown type"


class NoPlace(Exception):
    """The server has as many sessions as it takes."""


class ActionRefused(Exception):
    """The server did not take the action. `fields`: those that were wrong. `ended`: it has ended the session too."""

    def __init__(self, message: str, *, fields: Sequence[str] = (), ended: bool = False) -> None:
        super().__init__(message)
        self.fields, self.ended = fields, ended


class ActionFailed(Exception):
    """The environment raised an exception at the action."""


class NoReply(InfraError):
    """An action without a reply that can be used, in a session that had not ended before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvReply:
    """The reply to a reset or an action."""

    observation: dict[str, Any]  # metadata included
    reward: float | None
    done: bool


class OpenEnvSession:
    """A connection. Requests are made one after the other."""

    def __init__(self, who: str, timeout_s: float) -> None:
        self.who = who
        self.url = ""
        self._timeout_s = timeout_s
        self._http = aiohttp.ClientSession()
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._replies: asyncio.Queue[str | None] = asyncio.Queue()  # None: the connection has ended
        self._reading: asyncio.Task[None] | None = None

    async def connect(self, url: str, headers: Mapping[str, str]) -> None:
        """Raises `InfraError`."""
        self.url = url
        try:
            async with asyncio.timeout(self._timeout_s):
                address = f"ws{url.removeprefix('http')}/ws"
                self._socket = await self._http.ws_connect(address, headers=headers, max_msg_size=MAX_MESSAGE)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            await self._http.close()
            raise InfraError(f"{self.who}: no connection: {error or type(error).__name__}") from error
        self._reading = asyncio.create_task(self._read(self._socket))

    async def reset(self, arguments: Mapping[str, Any]) -> OpenEnvReply:
        """Begin an episode. Raises `NoPlace` and `InfraError`."""
        try:
            return self._reply(await self._ask("reset", arguments))
        except (ActionRefused, ActionFailed) as error:
            raise InfraError(f"{self.who}: the reset failed: {error}") from error

    async def step(self, action: Mapping[str, Any]) -> OpenEnvReply:
        """Raises `ActionRefused`, `ActionFailed`, `NoReply`, and `InfraError` if the session ended before."""
        had_ended = self._reading is None or self._reading.done()
        try:
            return self._reply(await self._ask("step", action))
        except InfraError as error:
            if had_ended:
                raise
            raise NoReply(str(error)) from error

    async def close(self) -> None:
        """End the session, and the environment that the server has for it."""
        if self._socket is not None:
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(CLOSE_S):
                    await self._socket.send_str(json.dumps({"type": "close"}))
                    await self._socket.close()
        if self._reading is not None:
            self._reading.cancel()
        await self._http.close()

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Read all the time: the server's pings are answered while the policy writes."""
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.TEXT:
                    break
                self._replies.put_nowait(message.data)
        finally:
            self._replies.put_nowait(None)

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data of the reply."""
        assert self._socket is not None
        try:
            async with asyncio.timeout(self._timeout_s):
                with contextlib.suppress(ConnectionError):  # closed: the reason may be among the replies
                    await self._socket.send_str(json.dumps({"type": kind, "data": data}))
                text = await self._replies.get()
        except TimeoutError as error:
            key = f"rollout_step.params.timeout_s={self._timeout_s:g}"
            raise InfraError(f"{self.who}: no reply to {kind} within {key}") from error
        if text is None:
            self._replies.put_nowait(None)
            raise InfraError(f"{self.who}: the connection ended before the reply to {kind}")
        return self._data(kind, text)

    def _data(self, kind: str, text: str) -> dict[str, Any]:
        try:
            # Written again: half of a surrogate pair becomes `?`, and NaN is an error.
            written = json.dumps(json.loads(text), ensure_ascii=False, allow_nan=False)
            reply = json.loads(written.encode(errors="replace"))
        except (ValueError, RecursionError) as error:
            raise InfraError(f"{self.who}: the reply to {kind} is not JSON: {error}: {text[:200]!r}") from error
        data = reply.get("data") if isinstance(reply, dict) else None
        if not isinstance(data, dict) or reply.get("type") not in ("observation", "error"):
            raise InfraError(f"{self.who}: the reply to {kind} is not an observation: {text[:200]!r}")
        if reply["type"] == "error":
            raise self._error(kind, data)
        return data

    def _error(self, kind: str, data: Mapping[str, Any]) -> Exception:
        """The exception for an error, by its code (`WSErrorCode`)."""
        code, message = data.get("code"), str(data.get("message"))
        errors = data.get("errors")
        if code == "CAPACITY_REACHED":
            return NoPlace(message)
        if code == "VALIDATION_ERROR" and isinstance(errors, list):
            return _refused(errors)
        if kind == "step" and code == "SESSION_ERROR" and message.startswith(UNWRITABLE):
            return ActionRefused("the environment does not accept these values", ended=True)
        if code == "EXECUTION_ERROR":
            return ActionFailed(message)
        return InfraError(f"{self.who}: {kind}: {code}: {message[:400]}")

    def _reply(self, data: Mapping[str, Any]) -> OpenEnvReply:
        observation, reward, done = data.get("observation"), data.get("reward"), data.get("done", False)
        if not isinstance(observation, dict) or not isinstance(done, bool):
            raise InfraError(f"{self.who}: an observation without its fields: {json.dumps(data)[:200]}")
        if reward is not None and not (isinstance(reward, int | float) and abs(reward) < MAX_REWARD):
            raise InfraError(f"{self.who}: the reward is {reward!r:.80}, not a finite number")
        return OpenEnvReply(observation=observation, reward=None if reward is None else float(reward), done=done)


def _refused(errors: Sequence[Any]) -> ActionRefused:
    """The errors of pydantic (`errors()`), each with the place `loc` and the text `msg`."""
    found = [(error.get("loc") or [], error.get("msg")) for error in errors if isinstance(error, dict)]
    texts = [f"{'.'.join(map(str, place))}: {text}" if place else str(text) for place, text in found]
    return ActionRefused("; ".join(texts), fields=[str(place[0]) for place, _ in found if place])
