"""Environments of the package `openenv`, run by the interpreter of its own virtual environment.

`python openenv_server.py PORT KIND PLACES`. `small_server.py` has the same ones without the package.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from random import Random
from typing import Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation, ToolError, ToolErrorType
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field, field_validator


class GuessAction(Action):
    """A guess."""

    guess: int = Field(ge=0, le=60, description="a number from 0 to 9")

    @field_validator("guess")
    @classmethod
    def check(cls, value: int) -> int:
        if value == 42:
            raise ValueError("never 42")
        return value


class GuessObservation(Observation):
    hint: str = ""
    guesses: int = 0


class Guess(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self, seed: int | None = None, secret: int | None = None, over: bool = False, **_: Any
    ) -> GuessObservation:
        self.secret = Random(seed).randint(0, 9) if secret is None else secret
        self.guesses = 0
        return self.seen("Guess a number from 0 to 9.", 0.0, done=over)

    def step(self, action: GuessAction, **_: Any) -> GuessObservation:
        if action.guess == 50:
            raise RuntimeError("boom")
        if action.guess == 51:
            time.sleep(60)
        if action.guess == 52:
            os._exit(3)
        if action.guess == 53:
            raise asyncio.CancelledError
        if action.guess == 54:
            return self.seen("?", 1e300)
        self.guesses += 1
        if action.guess == self.secret:
            return self.seen("right", 1.0, done=True)
        return self.seen("higher" if action.guess < self.secret else "lower", -0.25)

    def seen(self, hint: str, reward: float, *, done: bool = False) -> GuessObservation:
        metadata = {"secret": self.secret}
        return GuessObservation(hint=hint, guesses=self.guesses, reward=reward, done=done, metadata=metadata)

    @property
    def state(self) -> State:
        return State(step_count=self.guesses)


class Tools(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("numbers")

        @mcp.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        super().__init__(mcp)

    def reset(self, seed: int | None = None, **_: Any) -> Observation:
        return Observation()

    async def step_async(self, action: Action, **others: Any) -> Observation:
        if isinstance(action, CallToolAction) and action.arguments.get("a") == 13:
            lost = ToolError(error_type=ToolErrorType.TRANSPORT_ERROR, message="lost")
            return CallToolObservation(tool_name="add", error=lost)
        return await super().step_async(action, **others)

    def _step_impl(self, action: Action, **_: Any) -> Observation:
        raise ValueError("only tools")

    @property
    def state(self) -> State:
        return State()


KINDS = {"guess": (Guess, GuessAction, GuessObservation), "tools": (Tools, CallToolAction, CallToolObservation)}

if __name__ == "__main__":
    app = create_app(*KINDS[sys.argv[2]], env_name="numbers", max_concurrent_envs=int(sys.argv[3]))
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="warning",
        ws_ping_interval=0.3,
        ws_ping_timeout=0.3,
    )
