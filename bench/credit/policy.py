"""The policy of the generated tasks, as an engine, and the rollouts that it plays."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from credit.tasks import LETTERS, PlantedTask

from ramet.config.schema import RolloutConfig, SystemPrompt, ToolConfig
from ramet.engines.protocol import Request
from ramet.models.encoder import Encoder
from ramet.rollout.config import TagsConfig
from ramet.rollout.plan import RolloutPlan, RolloutRequest
from ramet.rollout.steps.tags import Tags
from ramet.rollout.worker import RolloutWorker
from ramet.testing.doubles import Reply, ScriptedEngine, echo_tool, read_request_id
from ramet.types import Group, Rollout

CALL = re.compile(r"<python>([a-d])</python>")


def letters_of(text: str) -> str:
    """Return the calls in a text, in order."""
    return "".join(CALL.findall(text))


class PlantedPolicy(ScriptedEngine):
    """Samples what the planted task of each request says; the request's seed decides."""

    def __init__(self, tasks: Sequence[PlantedTask], encoder: Encoder) -> None:
        super().__init__({}, encoder)
        self._tasks: Mapping[str, PlantedTask] = {task.id: task for task in tasks}

    def said(self, request: Request) -> Reply:
        key, turn = read_request_id(request.id)
        planted, rng = self._tasks[key.task], Random(request.seed)
        letters = letters_of(self.encoder.decode(request.token_ids))
        if turn == planted.turns:
            is_right = rng.random() < planted.success(letters)
            return Reply(text=f"<answer>{'yes' if is_right else 'no'}</answer>", entropies=(0.5,))
        (letter,) = rng.choices(LETTERS, planted.policy[turn])
        return Reply(text=f"<python>{letter}</python>", entropies=(planted.entropy(turn),))


class Right:
    """The reward: whether the answer is right."""

    per_rollout = True

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float | None]:
        return [float(rollout.answer == "yes") for rollout in group]


class PlantedRollouts:
    """The rollout side over the planted policy: what `ramet_replay.credit.measure` asks of it."""

    def __init__(self, tasks: Sequence[PlantedTask], encoder: Encoder, branch_policy: Any, group_size: int) -> None:
        self.worker = RolloutWorker(
            engine=PlantedPolicy(tasks, encoder),
            encoder=encoder,
            step=Tags(TagsConfig()),
            branch_policy=branch_policy,
            tools={"python": (echo_tool(), ToolConfig())},
            config=RolloutConfig(group_size=group_size, max_turns=8, max_tool_calls=8),
            system_prompt=SystemPrompt.NEVER,
            seed=1,
            deterministic=False,
        )

    def group_size(self, plan: RolloutPlan) -> int:
        return plan.resolved(self.worker.config).group_size

    async def run(self, request: RolloutRequest, *, on_group: Any = None) -> list[Group]:
        return await self.worker.run(request, on_group=on_group)
