"""A gateway on a free port of the loopback, with a scripted engine that keeps what it saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from ramet.engines.protocol import Completion, Request, Sampling
from ramet.models.encoder import Encoder
from ramet.rollout.gateway.server import Gateway
from ramet.rollout.gateway.session import AgentSession, SessionLimits, SessionSettings
from ramet.testing.chat_templates import chat_encoder
from ramet.testing.doubles import Reply, ScriptedEngine, tiny_encoder
from ramet.types import Rollout, StopReason, Task, user_prompt

NAME = "gateway/0/s/0"
LIMITS = SessionLimits(max_turns=20, max_tokens=2000)
LARGE = SessionLimits(max_turns=50, max_tokens=50_000)


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return tiny_encoder()


class Recorded:
    """An engine that keeps prompt and sampled ids of each request."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.engine, self.info = engine, engine.info
        self.seen: list[tuple[list[int], list[int]]] = []

    async def generate(self, request: Request, on_first: Any = None) -> Completion:
        completion = await self.engine.generate(request, on_first)
        self.seen.append((list(request.token_ids), list(completion.token_ids)))
        return completion

    def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)

    def release(self, keys: Sequence[str]) -> None:
        self.engine.release(keys)


def rollout_of(session: AgentSession) -> Rollout:
    segments, starts = session.segments()
    task = Task(id="t", prompt=user_prompt("?"))
    return Rollout(id="0", task=task, segments=tuple(segments), thread_starts=starts, stop=StopReason.ANSWER)


def check_exact(session: AgentSession, engine: Recorded) -> Rollout:
    """The session's rollout, checked as `check_rollouts` does."""
    rollout = rollout_of(session)
    check_rollouts([rollout], engine)
    return rollout


def check_rollouts(rollouts: Sequence[Rollout], engine: Recorded) -> None:
    """Every request and its reply are a beginning of one thread, and every sampled token is once in the rollouts.

    No thread has tokens that the engine did not see, unless its last request failed. None of the rollouts is a fork.
    """
    threads = [thread for rollout in rollouts for thread in rollout.threads]
    paths = [[i for segment in thread.segments for i in segment.token_ids] for thread in threads]
    seen = [prompt + sampled for prompt, sampled in engine.seen]
    for turn in seen:
        assert any(path[: len(turn)] == turn for path in paths)
    for thread, path in zip(threads, paths, strict=True):
        assert path in seen or not thread.segments[-1].is_sampled
    assert sum(rollout.n_sampled_tokens for rollout in rollouts) == sum(len(sampled) for _, sampled in engine.seen)
    for rollout in rollouts:
        assert [s.turn for s in rollout.segments] == sorted(s.turn for s in rollout.segments)


def settings_of(engine: Any, encoder: Encoder, limits: SessionLimits) -> SessionSettings:
    return SessionSettings(engine=engine, encoder=encoder, limits=limits, sampling=Sampling(max_tokens=1), seed=1)


Open = Callable[..., tuple[AgentSession, Recorded]]


@pytest.fixture
def opened(encoder: Encoder) -> Open:
    def build(script: Any, limits: SessionLimits = LIMITS, name: str = NAME) -> tuple[AgentSession, Recorded]:
        engine = Recorded(ScriptedEngine(script, encoder))
        return AgentSession(name, settings_of(engine, encoder, limits)), engine

    return build


@dataclass
class Served:
    """One session at a gateway, and requests to it from the process of the test."""

    url: str
    key: str
    session: AgentSession
    engine: Recorded
    http: Any  # the `aiohttp.ClientSession`
    gateway: Gateway

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """The status of the response, and its body from JSON."""
        async with self.http.post(f"{self.url}{path}", json=body, headers=self.headers(**headers)) as response:
            return response.status, json.loads(await response.text())

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        async with self.http.get(f"{self.url}{path}", headers=self.headers(**headers)) as response:
            return response.status, json.loads(await response.text())

    async def events(self, path: str, body: Any, **headers: str) -> list[tuple[str, Any]]:
        """The server-sent events of a response, each with its name."""
        async with self.http.post(f"{self.url}{path}", json=body, headers=self.headers(**headers)) as response:
            text = await response.text()
            assert response.status == 200, text
        events = []
        for block in text.split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "data" in fields:
                events.append((fields.get("event", ""), json.loads(fields["data"])))
        return events

    def check(self) -> Rollout:
        return check_exact(self.session, self.engine)

    def headers(self, **headers: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}", **headers}


Script = Callable[[str], Reply | str]


@dataclass
class Serving:
    """A gateway with any number of sessions, each with an engine of its own."""

    gateway: Gateway
    http: Any

    def open(self, script: Script, limits: SessionLimits = LARGE, family: str = "qwen2.5") -> Served:
        """A session whose engine replies by `script` to the text of the prompt."""
        encoder = chat_encoder(family)

        def by_prompt(task: str, path: str, turn: int) -> Reply | str:
            return script(encoder.decode(scripted.requests[-1].token_ids))

        scripted = ScriptedEngine(by_prompt, encoder)
        engine = Recorded(scripted)
        session = AgentSession(NAME, settings_of(engine, encoder, limits))
        return Served(self.gateway.url, self.gateway.open(session), session, engine, self.http, self.gateway)


@asynccontextmanager
async def serving() -> AsyncIterator[Serving]:
    from aiohttp import ClientSession

    async with Gateway() as gateway, ClientSession() as http:
        yield Serving(gateway, http)


@asynccontextmanager
async def serve_one(script: Script, limits: SessionLimits = LARGE, family: str = "qwen2.5") -> AsyncIterator[Served]:
    """Serve one session at a gateway of its own; arguments as of `Serving.open`."""
    async with serving() as gateway:
        yield gateway.open(script, limits, family)


@pytest.fixture
def serve() -> Any:
    return serve_one


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]
