"""The common part of all turns of one group: the engine, the tools, the limits, and the requests to the engine."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ramet.config.schema import RolloutConfig
from ramet.engines.protocol import Engine, Request, Sampling
from ramet.rollout.completion import Versions
from ramet.rollout.keys import request_seed
from ramet.rollout.observer import RolloutObserver
from ramet.rollout.plan import ResolvedPlan
from ramet.rollout.progress import RunCounts
from ramet.rollout.stateful import StatefulComponent
from ramet.rollout.tools.runner import ToolRunner
from ramet.rollout.tree import LiveRollout
from ramet.rollout.watchdog import Watchdog
from ramet.types import RolloutStep, Task, ToolSchema
from ramet.types.task import FROM_ROW

if TYPE_CHECKING:
    from ramet.models.encoder import Encoder
    from ramet.rollout.agents.service import AgentService


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContext:
    """The parts of one group's turns."""

    engine: Engine
    encoder: Encoder
    tools: Mapping[str, ToolRunner]
    task: Task
    schemas: tuple[ToolSchema, ...]  # of the tools that the task may use
    watchdog: Watchdog
    plan: ResolvedPlan
    seed: int
    step: RolloutStep
    config: RolloutConfig
    stateful: tuple[StatefulComponent, ...] = ()  # the rollout step and those tools of the task with states
    versions: Versions | None = None  # of the weights that may sample; None: any
    counts: RunCounts = field(default_factory=RunCounts)
    observer: RolloutObserver | None = None
    agents: AgentService | None = None  # of rollout steps that are agents
    samplings: dict[tuple[int, tuple[str, ...]], Sampling] = field(default_factory=dict, init=False)

    @property
    def step_name(self) -> str:
        return f"{type(self.step).__module__}.{type(self.step).__qualname__}"

    def runner(self, name: str) -> ToolRunner:
        """The runner of a tool that the task may use."""
        return self.tools[name if self.task.schemas is None else FROM_ROW]

    def room(self, live: LiveRollout) -> int:
        """Tokens that may still follow: by the response's limit and by the engine's."""
        of_response = self.config.max_response_tokens - live.n_response_tokens
        return min(of_response, self.engine.info.max_tokens - len(live.token_ids))

    def request(self, live: LiveRollout, stop: tuple[str, ...]) -> Request:
        """The engine's request in a rollout's present turn."""
        turn = live.turn
        forks_now = live.parent is not None and turn == live.fork_turn
        return Request(
            id=f"{live.key.text}/{turn}",
            token_ids=array("i", live.token_ids),
            sampling=self._sampling(self.room(live), stop),
            seed=request_seed(self.seed, live.key, turn),
            cache_key=live.key.text,
            fork_of=live.parent.key.text if forks_now and live.parent is not None else "",
            first_tokens=self.config.first_tokens,
        )

    def _sampling(self, max_tokens: int, stop: tuple[str, ...]) -> Sampling:
        """One object for all that sample alike, as a group does in its first turn."""
        if (existing := self.samplings.get((max_tokens, stop))) is not None:
            return existing
        plan = self.plan
        sampling = self.samplings[max_tokens, stop] = Sampling(
            temperature=plan.temperature,
            top_p=plan.top_p,
            top_k=plan.top_k,
            min_p=plan.min_p,
            repetition_penalty=plan.repetition_penalty,
            max_tokens=max_tokens,
            stop=stop,
            stop_token_ids=self.encoder.eos_ids,
        )
        return sampling
