from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from ramet.config.schema import ToolConfig
from ramet.rollout.progress import ProgressCounter, RolloutProgress
from ramet.rollout.worker import RolloutWorker
from ramet.types import (
    AfterTool,
    BranchAction,
    BranchEvent,
    Fork,
    GroupView,
    Need,
    Start,
    StartRoots,
    ToolCall,
    ToolResult,
    ToolSchema,
)

CALL, ANSWER = "<python>1</python>", "<answer>1</answer>"


def test_calls_add_up_and_tokens_outlive_them() -> None:
    counter = ProgressCounter()
    with counter.counting(8) as first, counter.counting(4) as second:
        first.done, first.tokens, second.in_tools, second.forks = 3, 100, 2, 1
        assert counter.progress() == RolloutProgress(total=12, done=3, forks=1, in_tools=2, tokens=100)
    assert counter.progress() == RolloutProgress(tokens=100)


class Watching:
    """A tool that looks at the worker while rollouts wait for it."""

    schema = ToolSchema(
        name="python",
        description="",
        parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
        deterministic=False,
    )

    def __init__(self) -> None:
        self.seen: list[RolloutProgress] = []
        self.worker: RolloutWorker | None = None

    async def __call__(self, call: ToolCall) -> ToolResult:
        assert self.worker is not None
        self.seen.append(self.worker.progress())
        return ToolResult(text="1")


class ForksOnce:
    """One root, and a fork of it after its tool call."""

    needs: frozenset[Need] = frozenset()

    def decide(self, event: BranchEvent, group: GroupView, rng: Random) -> Sequence[BranchAction]:
        if isinstance(event, Start):
            return [StartRoots(n=1)]
        return [Fork(rollout=event.rollout, turn=event.turn)] if isinstance(event, AfterTool) else []


def test_a_worker_counts_rollouts_forks_tools_and_tokens(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tool, run = Watching(), RolloutWorker.run
    ended: list[RolloutProgress] = []

    async def watched(worker: RolloutWorker, *given: Any, **named: Any) -> Any:
        tool.worker = worker
        groups = await run(worker, *given, **named)
        ended.append(worker.progress())
        return groups

    monkeypatch.setattr(RolloutWorker, "run", watched)
    calls = iter([CALL, CALL, ANSWER, ANSWER])  # the fork calls the tool too
    played = play(lambda *_: next(calls), policy=ForksOnce(), tools={"python": (tool, ToolConfig())}, group_size=2)
    tokens = sum(len(s) for r in played.rollouts for s in r.segments if s.is_sampled)
    assert [(seen.total, seen.in_tools, seen.forks) for seen in tool.seen] == [(2, 1, 0), (2, 1, 1)]
    assert tool.seen[0].done == 0 and tool.seen[0].tokens > 0
    assert ended == [RolloutProgress(tokens=tokens - len(played.rollouts[0].segments[1]))]  # which both share
