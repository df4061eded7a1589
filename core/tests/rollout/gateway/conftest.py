"""A gateway on a free port of the loopback, with a scripted engine that keeps what it saw."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from ramet.engines.protocol import Completion, Request
from ramet.models.encoder import Encoder
from ramet.rollout.gateway.session import Session, SessionLimits, SessionSampling
from ramet.testing.doubles import ScriptedEngine, tiny_encoder
from ramet.types import Rollout, StopReason, Task, user_prompt

NAME = "gateway/0/s/0"
LIMITS = SessionLimits(max_turns=20, max_tokens=2000)


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


def rollout_of(session: Session) -> Rollout:
    segments, starts = session.segments()
    task = Task(id="t", prompt=user_prompt("?"))
    return Rollout(id="0", task=task, segments=segments, thread_starts=starts, stop=StopReason.ANSWER)


def check_exact(session: Session, engine: Recorded) -> Rollout:
    """Every request and its reply are a beginning of one thread, and every sampled token is once in the rollout."""
    rollout = rollout_of(session)
    paths = [[i for segment in thread.segments for i in segment.token_ids] for thread in rollout.threads]
    for prompt, sampled in engine.seen:
        assert any(path[: len(prompt) + len(sampled)] == prompt + sampled for path in paths)
    assert rollout.n_sampled_tokens == sum(len(sampled) for _, sampled in engine.seen)
    assert [s.turn for s in rollout.segments] == sorted(s.turn for s in rollout.segments)
    return rollout


Open = Callable[..., tuple[Session, Recorded]]


@pytest.fixture
def opened(encoder: Encoder) -> Open:
    def build(script: Any, limits: SessionLimits = LIMITS, name: str = NAME) -> tuple[Session, Recorded]:
        engine = Recorded(ScriptedEngine(script, encoder))
        session = Session(name, engine=engine, encoder=encoder, limits=limits, sampling=SessionSampling(), seed=1)  # type: ignore[arg-type]
        return session, engine

    return build


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]
