"""One round of active rows: they sample together, then all their tool calls run together."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ramet import Fault, Segment, StopReason, Task, ToolCall, ToolRecord, ToolSchema
from ramet_release.entropy import segment_entropy
from ramet_release.internals import Completion, FinishReason, RolloutConfig, RunCounts, append_completion
from ramet_release.protocol import forced_end, requested, result_segment, stop_strings
from ramet_release.rows import LockstepRow
from ramet_release.sampling import Ask, RoundEngine
from ramet_release.tools import ReleasedTools

if TYPE_CHECKING:
    from ramet_release.internals import Encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class LockstepPrompt:
    """One task of a batch. `name` is the task's part of rollout keys; `tools` are those that it may use."""

    task: Task
    name: str
    segment: Segment
    tools: tuple[ToolSchema, ...]

    @property
    def stop(self) -> tuple[str, ...]:
        return stop_strings(self.tools)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRules:
    """The turn protocol with its parts; tags as in the step `tags`."""

    encoder: Encoder
    tools: ReleasedTools
    config: RolloutConfig
    result_tag: str
    answer_tag: str

    def call(
        self, prompt: LockstepPrompt, completion: Completion, text: str, rollout: str, turn: int
    ) -> ToolCall | None:
        """The call of this completion, if it ended at a tool's tag; `text` is the complete context. None: no call."""
        schema = next(tool for tool in prompt.tools if f"</{tool.name}>" == completion.stop)
        content = requested(text, schema.name)
        if content is None:
            return None
        assert schema.text_parameter is not None  # others are refused before a run starts
        arguments = {schema.text_parameter: content}
        return ToolCall(name=schema.name, arguments=arguments, rollout=rollout, turn=turn, task=prompt.task)

    def answer(self, response: Sequence[Segment]) -> str | None:
        """The last block of the answer tag in the sampled text."""
        return requested("".join(segment.text for segment in response if segment.is_sampled), self.answer_tag)

    def result(self, record: ToolRecord) -> Segment:
        return result_segment(record.text, record.turn, record.name, self.result_tag, self.encoder)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPlayer:
    """Runs rounds of one batch. `base`: place in a batch -> entropy of the first segment ever sampled there."""

    prompts: Sequence[LockstepPrompt]
    rules: TurnRules
    engine: RoundEngine
    base: MutableMapping[int, float]
    counts: RunCounts

    async def play(self, rows: Sequence[LockstepRow]) -> None:
        """All of these rows, which are active; those that are active still begin their next turn."""
        limit = self.rules.config.max_response_tokens
        most = max(1, *(limit - row.live.n_response_tokens for row in rows))  # one limit for all of them
        replies = await self.engine.sample([self._ask(row, most) for row in rows])
        calls = [
            (row, call)
            for row, reply in zip(rows, replies, strict=True)
            if (call := self._take(row, reply)) is not None
        ]
        await self._use_tools(calls)
        for row in rows:
            if row.is_active:
                self._go_on(row)

    def _ask(self, row: LockstepRow, most: int) -> Ask:
        live = row.live
        assert live.ends_at is not None
        stop = self.prompts[row.prompt].stop
        return Ask(
            key=live.key, turn=live.turn, token_ids=live.token_ids, max_tokens=most, stop=stop, ends_at=live.ends_at
        )

    def _take(self, row: LockstepRow, reply: Completion | Fault) -> ToolCall | None:
        """Append a row's sampled tokens; returns its call, if any."""
        live = row.live
        if isinstance(reply, Fault):
            live.fault = reply
            return None
        append_completion(live, reply, self.rules.encoder)
        self.counts.tokens += len(reply.token_ids)
        row.entropy = segment_entropy(reply.top_logprobs, self.rules.encoder.vocab_size)
        self.base.setdefault(row.index, row.entropy)
        if reply.finish is FinishReason.STOP:
            return self._call(row, reply)
        if reply.finish is FinishReason.END:
            row.live.stop = StopReason.END
        return None

    def _call(self, row: LockstepRow, reply: Completion) -> ToolCall | None:
        """The call of a row that ended at a tool's tag. One without content ends the row, with no end of sequence."""
        live, rules = row.live, self.rules
        if row.n_calls >= rules.config.max_tool_calls:
            live.append(forced_end(live.turn, live.segments[-1].policy_version, rules.encoder))
            row.live.stop = StopReason.CALL_LIMIT
            return None
        row.n_calls += 1
        text = rules.encoder.decode(live.token_ids)
        call = rules.call(self.prompts[row.prompt], reply, text, str(live.key), live.turn)
        if call is None:
            row.live.stop = StopReason.DONE
        return call

    async def _use_tools(self, calls: Sequence[tuple[LockstepRow, ToolCall]]) -> None:
        """Run all calls, and insert their results when the last of them has ended."""
        self.counts.in_tools += len(calls)
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._run(row, call)) for row, call in calls]
        finally:
            self.counts.in_tools -= len(calls)
        for (row, _), call_task in zip(calls, running, strict=True):
            record = call_task.result()
            row.live.turns[-1].calls += (record,)
            row.live.add_stat("tool_s", record.run_s)
            row.live.add_stat("tool_wait_s", record.wait_s)
            row.live.append(self.rules.result(record))

    async def _run(self, row: LockstepRow, call: ToolCall) -> ToolRecord:
        assert row.live.ends_at is not None
        return await self.rules.tools.call(call, row.live.ends_at)

    def _go_on(self, row: LockstepRow) -> None:
        """Let the row begin its next turn, if there is room for one."""
        live, config = row.live, self.rules.config
        live.record_turn({}, None)
        full = len(live.token_ids) >= self.engine.engine.info.max_tokens
        if full or live.n_response_tokens >= config.max_response_tokens:
            row.live.stop = StopReason.LENGTH
        elif live.turn + 1 >= config.max_turns:
            row.live.stop = StopReason.TURN_LIMIT
        else:
            live.begin_turn()
