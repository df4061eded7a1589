"""Shared by the tests of rollouts: the tiny encoder, and a way to play tasks with a scripted engine in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.models.encoder import Encoder
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.completion import Versions
from ramet.rollout.config import TagsConfig
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import ScriptedEngine, echo_tool, tiny_encoder
from ramet.types import Group, Task, Tool, user_prompt


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return tiny_encoder()


@dataclass
class Played:
    groups: list[Group]
    engine: ScriptedEngine
    metrics: dict[str, float]

    @property
    def rollouts(self) -> list[Any]:
        return [rollout for group in self.groups for rollout in group.rollouts]


def task(id: str = "t", **fields: Any) -> Task:
    return Task(id=id, prompt=user_prompt("What is 2+2?"), **fields)


@pytest.fixture
def play(encoder: Encoder) -> Callable[..., Played]:
    """Play `tasks` by `script` in step `at`; keyword arguments beyond these are fields of `RolloutConfig`."""

    def run(
        script: Any,
        *,
        tasks: Sequence[Task] | None = None,
        policy: Any = None,
        step: Any = None,
        tools: Mapping[str, tuple[Tool, ToolConfig]] | None = None,
        tool_sets: Mapping[str, Sequence[str]] | None = None,
        system_prompt: SystemPrompt = SystemPrompt.NEVER,
        seed: int = 1,
        deterministic: bool = False,
        plan: RolloutPlan | None = None,
        engine: Any = None,
        on_group: Any = None,
        version: int | None = None,
        newest: Any = None,
        score: Any = None,
        stored: Any = None,
        granted: Any = None,
        at: int = 3,
        **config: Any,
    ) -> Played:
        async def main() -> Played:
            used = engine or ScriptedEngine(script, encoder)
            worker = RolloutWorker(
                engine=used,
                encoder=encoder,
                step=step or Tags(TagsConfig()),
                branch_policy=policy or NoBranching(),
                tools={"python": (echo_tool(), ToolConfig())} if tools is None else tools,
                config=RolloutConfig(**config),
                system_prompt=system_prompt,
                seed=seed,
                deterministic=deterministic,
                tool_sets=tool_sets,
                score=score,
            )
            try:
                request = RolloutRequest(
                    tasks=tasks or [task()], step=at, plan=plan or RolloutPlan(), stored=stored or {}, granted=granted
                )
                groups = await worker.run(
                    request,
                    on_group=on_group,
                    versions=None if version is None else Versions(version, newest or (lambda: version)),
                )
                return Played(groups, used, worker.metrics())
            finally:
                await worker.close()

        return asyncio.run(main())

    return run


@pytest.fixture
def make_task() -> Callable[..., Task]:
    return task
