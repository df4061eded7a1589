"""Steps of the released AEPO before its rollouts: a probe of each prompt, and a full rollout that is thrown away."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from ramet import Fault, ToolCall
from ramet_release.entropy import segment_entropy
from ramet_release.internals import Completion, FinishReason, RolloutKey
from ramet_release.sampling import Ask, RoundEngine
from ramet_release.turn_player import LockstepPrompt, TurnRules

KEPT_FREE = 100  # tokens of the model's length, where a context is cut to make room for a result


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitored:
    """Entropies of one prompt: `root` of its probe, `segments` of the thrown away rollout, the first one included."""

    root: float
    segments: tuple[float, ...]


@dataclass(slots=True, eq=False)
class _Trial:
    """A rollout that is thrown away."""

    prompt: LockstepPrompt
    key: RolloutKey
    ids: array[int]
    entropies: list[float] = field(default_factory=list)
    n_calls: int = 0
    turn: int = 0
    is_active: bool = True

    @property
    def n_response(self) -> int:
        return len(self.ids) - len(self.prompt.segment)


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitor:
    """A monitored rollout, with tool calls as in any other. `ends_at`: its latest end, in the event loop's time."""

    prompts: Sequence[LockstepPrompt]
    rules: TurnRules
    engine: RoundEngine
    step: int
    ends_at: float

    async def run(self, probe_tokens: int) -> list[Monitored]:
        """One per prompt, in order. A probe that fails has the entropy 0, as if it had sampled nothing."""
        probes = await self.engine.sample(
            [self._ask(prompt, "probe", 0, prompt.segment.token_ids, probe_tokens) for prompt in self.prompts]
        )
        trials = [
            _Trial(prompt, self._key(prompt, "monitored"), array("i", prompt.segment.token_ids))
            for prompt in self.prompts
        ]
        while active := [trial for trial in trials if trial.is_active]:
            await self._round(active)
        return [
            Monitored(root=self._entropy(probe), segments=tuple(trial.entropies))
            for probe, trial in zip(probes, trials, strict=True)
        ]

    async def _round(self, active: Sequence[_Trial]) -> None:
        limit, room = self.rules.config.max_response_tokens, self.engine.engine.info.max_tokens
        longest = max(trial.n_response for trial in active), max(len(trial.ids) for trial in active)
        most = max(1, min(limit - longest[0], room - longest[1]))
        replies = await self.engine.sample(
            [self._ask(trial.prompt, "monitored", trial.turn, trial.ids, most) for trial in active]
        )
        calls = [
            (trial, call)
            for trial, reply in zip(active, replies, strict=True)
            if (call := self._take(trial, reply)) is not None
        ]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self.rules.tools.call(call, self.ends_at)) for _, call in calls]
        for (trial, _), call_task in zip(calls, running, strict=True):
            result = self.rules.result(call_task.result()).token_ids
            if len(trial.ids) + len(result) > room:
                trial.ids = trial.ids[: max(0, room - len(result) - KEPT_FREE)]
            trial.ids.extend(result)
        for trial in active:
            trial.turn += 1
            trial.is_active &= trial.n_response < limit and len(trial.ids) < room

    def _take(self, trial: _Trial, reply: Completion | Fault) -> ToolCall | None:
        if isinstance(reply, Fault):
            trial.is_active = False
            return None
        trial.ids.extend(reply.token_ids)
        trial.entropies.append(self._entropy(reply))
        call = None
        if reply.finish is FinishReason.STOP and trial.n_calls < self.rules.config.max_tool_calls:
            text = self.rules.encoder.decode(trial.ids)
            call = self.rules.call(trial.prompt, reply, text, str(trial.key), trial.turn)
        trial.n_calls += call is not None
        trial.is_active = call is not None or reply.finish is FinishReason.LENGTH
        return call

    def _entropy(self, reply: Completion | Fault) -> float:
        if isinstance(reply, Fault):
            return 0.0
        return segment_entropy(reply.top_logprobs, self.rules.encoder.vocab_size)

    def _key(self, prompt: LockstepPrompt, path: str) -> RolloutKey:
        return RolloutKey(self.engine.plan.salt, self.step, prompt.name, path)

    def _ask(self, prompt: LockstepPrompt, path: str, turn: int, ids: array[int], most: int) -> Ask:
        return Ask(
            key=self._key(prompt, path),
            turn=turn,
            token_ids=ids,
            max_tokens=most,
            stop=prompt.stop,
            ends_at=self.ends_at,
        )
