"""A server with the protocol of OpenEnv 0.10, without its package: `python small_server.py PORT KIND PLACES`.

It has the environments of `openenv_server.py`, and answers as that one does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

from aiohttp import WSMsgType, web

FIELDS = {"metadata": {"type": "object"}}
GUESS = {
    "description": "A guess.",
    "type": "object",
    "properties": {"guess": {"type": "integer", "description": "a number from 0 to 9"}, **FIELDS},
    "required": ["guess"],
    "additionalProperties": False,
}
HINT = {"type": "object", "properties": {"hint": {"type": "string"}, "guesses": {"type": "integer"}, **FIELDS}}
CALL = {
    "type": "object",
    "properties": {
        "type": {"const": "call_tool", "type": "string"},
        "tool_name": {"type": "string"},
        "arguments": {"type": "object"},
        **FIELDS,
    },
    "required": ["tool_name"],
}
NUMBERS = {"a": {"type": "integer"}, "b": {"type": "integer"}}
ADD = {"name": "add", "description": "Add two numbers.", "inputSchema": {"type": "object", "properties": NUMBERS}}


class Failed(Exception):
    """An error of the protocol."""

    def __init__(self, code: str, message: str, **others: Any) -> None:
        super().__init__(message)
        self.data = {"code": code, "message": message, **others}


class Guess:
    """A number is hidden."""

    schemas: Mapping[str, Any] = {"action": GUESS, "observation": HINT, "reset_observation": HINT, "state": {}}

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        self.secret = data.get("secret", Random(data.get("seed")).randint(0, 9))
        self.guesses = 0
        return self.seen("Guess a number from 0 to 9.", 0.0, done=data.get("over", False))

    async def step(self, data: dict[str, Any]) -> dict[str, Any]:
        guess = data["guess"]
        if guess > 60:
            error = {"loc": ["guess"], "msg": "Input should be less than or equal to 60"}
            raise Failed("VALIDATION_ERROR", "Invalid message", errors=[error])
        if guess == 42:
            raise Failed("SESSION_ERROR", "Unable to serialize unknown type: <class 'ValueError'>")
        if guess == 50:
            raise Failed("EXECUTION_ERROR", "boom")
        if guess == 51:
            await asyncio.sleep(60)
        if guess == 52:
            os._exit(3)
        if guess == 53:
            raise asyncio.CancelledError
        if guess == 54:
            return self.seen("?", 1e300)
        self.guesses += 1
        if guess == self.secret:
            return self.seen("right", 1.0, done=True)
        return self.seen("higher" if guess < self.secret else "lower", -0.25)

    def seen(self, hint: str, reward: float, *, done: bool = False) -> dict[str, Any]:
        metadata = {"secret": self.secret}
        observation = {"metadata": metadata, "hint": hint, "guesses": self.guesses}
        return {"observation": observation, "reward": reward, "done": done, "metadata": metadata}


class Tools:
    """Actions are calls of the tool `add`."""

    schemas: Mapping[str, Any] = {"action": CALL, "observation": {}, "state": {}}

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"observation": {"metadata": {}}, "reward": None, "done": False}

    async def step(self, data: dict[str, Any]) -> dict[str, Any]:
        if data["arguments"]["a"] == 13:
            error = {"error_type": "transport_error", "message": "lost"}
            return self.seen(result=None, error=error)
        total = data["arguments"]["a"] + data["arguments"]["b"]
        result = {"content": [{"type": "text", "text": str(total)}], "is_error": False}
        return self.seen(result=result, error=None)

    def seen(self, **fields: Any) -> dict[str, Any]:
        return {"observation": {"metadata": {}, "tool_name": "add", **fields}, "reward": None, "done": False}


class Server:
    def __init__(self, kind: str, places: int) -> None:
        self.environment = {"guess": Guess, "tools": Tools}[kind]
        self.places = places

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    async def schema(self, request: web.Request) -> web.Response:
        return web.json_response(self.environment.schemas)

    async def mcp(self, request: web.Request) -> web.Response:
        asked = await request.json()
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": {"tools": [ADD]}})

    async def session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        with self.place() as has_place:
            if not has_place:
                await socket.send_json({"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "full"}})
                return socket
            environment, is_pinged = self.environment(), False
            async for message in socket:
                if message.type is WSMsgType.PONG:
                    is_pinged = False
                    continue
                if is_pinged or message.type is not WSMsgType.TEXT or message.json()["type"] == "close":
                    break
                try:
                    data = message.json()["data"]
                    is_reset = message.json()["type"] == "reset"
                    seen = environment.reset(data) if is_reset else await environment.step(data)
                    await socket.send_json({"type": "observation", "data": seen})
                    if is_reset and data.get("ping"):
                        is_pinged = True
                        await socket.ping()
                except Failed as error:
                    await socket.send_json({"type": "error", "data": error.data})
                    if error.data["code"] == "SESSION_ERROR":
                        break
        return socket

    @contextmanager
    def place(self) -> Iterator[bool]:
        self.places -= 1
        try:
            yield self.places >= 0
        finally:
            self.places += 1


if __name__ == "__main__":
    server = Server(sys.argv[2], int(sys.argv[3]))
    app = web.Application()
    app.add_routes(
        [web.get("/health", server.health), web.get("/schema", server.schema), web.get("/ws", server.session)]
    )
    app.add_routes([web.post("/mcp", server.mcp)])
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
