"""The same work through Ramet: its rollout worker and its step `tags`, with a fake engine that computes nothing."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable

from rollout_loop.canned import SEARCH_SCHEMA, CannedEngine
from rollout_loop.work import QUESTION, SYSTEM, Fixture, Load, Played, Tools

from ramet import Message, Rollout, Task, ToolCall, ToolResult
from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.engines.protocol import Completion, FinishReason, FirstReport, Request
from ramet.rollout.branching.builtin import NoBranching
from ramet.rollout.config import TagsConfig
from ramet.rollout.plan import RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker


class FakeEngine(CannedEngine):
    """Answers every request with the canned turns of `Fixture`."""

    def __init__(self, fixture: Fixture, load: Load) -> None:
        super().__init__(fixture)
        self.load = load

    async def generate(self, request: Request, on_first: Callable[[FirstReport], None] | None = None) -> Completion:
        await asyncio.sleep(0)
        turn = int(request.id.rpartition("/")[2])
        sampled = self.fixture.turn(turn, self.load.calls)
        if on_first is not None:
            on_first(FirstReport(request=request.id, entropies=tuple(sampled.entropies[: request.first_tokens])))
        return Completion(
            token_ids=sampled.ids,
            logprobs=sampled.logprobs,
            entropies=sampled.entropies,
            finish=FinishReason.STOP,
            stop="</search>" if turn < self.load.calls else "</answer>",
            policy_versions=array("i", [0]) * len(sampled.ids),
            prompt_tokens=len(request.token_ids),
            cached_tokens=0,
        )


class SearchTool:
    """`Tools` as a plugin would offer it."""

    schema = SEARCH_SCHEMA

    def __init__(self, tools: Tools) -> None:
        self.tools = tools

    async def __call__(self, call: ToolCall) -> ToolResult:
        _, _, task, member = call.rollout.split("/")
        return ToolResult(text=await self.tools.run(int(task), int(member), call.turn))


class Product:
    """A worker for one load."""

    def __init__(self, fixture: Fixture, load: Load, tools: Tools, *, retries: int) -> None:
        self.tasks = [
            Task(
                id=str(i),
                prompt=(Message(role="system", content=SYSTEM), Message(role="user", content=QUESTION.format(i))),
            )
            for i in range(load.n_tasks)
        ]
        self.worker = RolloutWorker(
            engine=FakeEngine(fixture, load),
            encoder=fixture.encoder,
            step=Tags(TagsConfig()),
            branch_policy=NoBranching(),
            tools={"search": (SearchTool(tools), ToolConfig(retries=retries, concurrency=load.rollouts))},
            config=RolloutConfig(group_size=load.group_size, max_concurrent=load.rollouts),
            system_prompt=SystemPrompt.AUTO,
            seed=1,
            deterministic=False,
        )
        self._rollouts: list[Rollout] = []

    async def run(self) -> None:
        groups = await self.worker.run(RolloutRequest(tasks=self.tasks, step=1))
        self._rollouts = [rollout for group in groups for rollout in group.rollouts]

    def played(self) -> list[Played]:
        """The rollouts in the form of the bare loop. Not timed: Ramet keeps segments."""
        return [_played(rollout) for rollout in self._rollouts]


def _played(rollout: Rollout) -> Played:
    prompt, *response = rollout.segments
    played = Played(prompt.token_ids, array("i"), array("i"), array("f"), lost=not rollout.valid)
    for segment in response:
        played.ids.extend(segment.token_ids)
        played.mask.extend([int(segment.is_sampled)] * len(segment))
        played.logprobs.extend(segment.logprobs or [0.0] * len(segment))
    return played
