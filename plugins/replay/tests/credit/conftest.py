"""A scripted policy with a planted truth: the first of two calls decides, and everything after it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.engines.protocol import Request
from ramet.errors import InfraError
from ramet.models.encoder import Encoder
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import TagsConfig
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.record import GroupRecord, write_records
from ramet.rollout.scoring import ScoredGroup, Scorer, WeightedReward
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import Reply, ScriptedEngine, echo_tool, read_request_id, tiny_encoder
from ramet.types import Group, Rollout, Task, user_prompt

STEP = 3  # of the record


class Decides(ScriptedEngine):
    """Rollouts with an even number call `good` first, the others `bad`; both call `again`, and answer 1 or 0.

    `fails`: continuations by these numbers meet a fault of the infrastructure.
    """

    def __init__(self, encoder: Encoder, fails: Sequence[str] = ()) -> None:
        super().__init__({}, encoder)
        self.fails = fails

    def said(self, request: Request) -> Reply | str:
        key, turn = read_request_id(request.id)
        if key.path in self.fails:
            return Reply(text="", fails="lost")
        if turn == 0:
            return f"<python>{'good' if int(key.path.partition('.')[0]) % 2 == 0 else 'bad'}</python>"
        is_good = "good" in self.encoder.decode(request.token_ids)
        return "<python>again</python>" if turn == 1 else f"<answer>{int(is_good)}</answer>"


class Right:
    """Judges the answer."""

    per_rollout = True

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | None]:
        return [float(rollout.answer == "1") for rollout in group]


class ScriptedRollouts:
    """The rollout side that `measure` is given, over a scripted engine."""

    def __init__(self, engine: ScriptedEngine, encoder: Encoder, policy: Any = None) -> None:
        self.engine = engine
        self.worker = RolloutWorker(
            engine=engine,
            encoder=encoder,
            step=Tags(TagsConfig()),
            branch_policy=policy or NoBranching(),
            tools={"python": (echo_tool(), ToolConfig())},
            config=RolloutConfig(group_size=2),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=False,
        )

    def group_size(self, plan: RolloutPlan) -> int:
        return plan.resolved(self.worker.config).group_size

    async def run(self, request: RolloutRequest, *, on_group: Any = None) -> list[Group]:
        return await self.worker.run(request, on_group=on_group)


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    return tiny_encoder()


@pytest.fixture
def scorer() -> Scorer:
    return Scorer([WeightedReward(name="right", plugin="tests", reward=Right())])


@pytest.fixture
def scripted(encoder: Encoder) -> Callable[..., ScriptedRollouts]:
    return lambda *fails, policy=None: ScriptedRollouts(Decides(encoder, fails), encoder, policy)


@pytest.fixture
def recorded(scripted: Callable[..., ScriptedRollouts], scorer: Scorer, tmp_path: Path) -> Callable[..., Path]:
    """Record one step of two tasks by this policy; returns the folder of the run."""

    def record(policy: Any = None) -> Path:
        async def play() -> list[ScoredGroup]:
            rollouts = scripted(policy=policy)
            tasks = [Task(id=name, prompt=user_prompt(f"What is {name}?")) for name in "ab"]
            groups = await rollouts.run(RolloutRequest(tasks=tasks, step=STEP))
            await rollouts.worker.close()
            return [await scorer.score(group) for group in groups]

        groups = asyncio.run(play())
        if any(not group.valid for group in groups):
            raise InfraError("the scripted rollouts were masked")
        records = [GroupRecord(step=STEP, group=group) for group in groups]
        (tmp_path / "run/rollouts").mkdir(parents=True)
        write_records(tmp_path / f"run/rollouts/step_{STEP:06d}.jsonl.gz", records)
        return tmp_path / "run"

    return record
