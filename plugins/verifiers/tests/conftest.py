"""A gateway with one session, whose engine is scripted, and an agent's access to it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ramet import AgentBudget, AgentContext
from ramet.engines.protocol import Sampling
from ramet.rollout.gateway.server import Gateway
from ramet.rollout.gateway.session import AgentSession, SessionLimits, SessionSettings
from ramet.testing.chat_templates import chat_encoder
from ramet.testing.doubles import ScriptedEngine

ENVIRONMENTS = Path(__file__).parent / "environments"
MAX_TURNS = 6


@dataclass
class Access:
    """An agent's access, and the session that it leads to."""

    ctx: AgentContext
    session: AgentSession
    encoder: Any

    @property
    def sampled(self) -> list[str]:
        """The texts of the sampled segments, in their order."""
        segments, _ = self.session.segments()
        return [self.encoder.decode(segment.token_ids) for segment in segments if segment.is_sampled]


Serve = Callable[..., AbstractAsyncContextManager[Access]]


@asynccontextmanager
async def _serve(script: Callable[[str], Any], folder: Path, max_tokens: int = 5000) -> AsyncIterator[Access]:
    encoder = chat_encoder("qwen2.5")

    def by_prompt(task: str, path: str, turn: int) -> Any:
        return script(encoder.decode(engine.requests[-1].token_ids))

    engine = ScriptedEngine(by_prompt, encoder)
    settings = SessionSettings(
        engine=engine,
        encoder=encoder,
        limits=SessionLimits(max_turns=MAX_TURNS, max_tokens=max_tokens),
        sampling=Sampling(max_tokens=1),
        seed=1,
    )
    session = AgentSession("gateway/0/s/0", settings)
    budget = AgentBudget(turns=MAX_TURNS, tokens=max_tokens, tool_calls=10, seconds=60)
    async with Gateway() as gateway:
        ctx = AgentContext(
            base_url=f"{gateway.url}/v1",
            key=gateway.open(session),
            model="policy",
            budget=budget,
            folder=folder,
            seed=1,
        )
        yield Access(ctx, session, encoder)


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    """`serve(script)`: `script` has the text of a prompt and returns the reply."""
    pytest.importorskip("aiohttp", reason="ramet[openai] is not installed")
    return lambda script, **options: _serve(script, tmp_path, **options)


@pytest.fixture
def python() -> str:
    """The Python that has the real `verifiers`."""
    folder = os.environ.get("RAMET_VERIFIERS")
    if folder is None:
        pytest.skip("RAMET_VERIFIERS does not name a virtual environment with verifiers")
    return f"{folder}/bin/python"


@pytest.fixture
def environments() -> str:
    return str(ENVIRONMENTS)
