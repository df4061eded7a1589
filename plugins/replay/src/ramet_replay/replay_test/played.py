"""Answers of an engine and of tools from a record, for recorded rollouts that run again with the loop of today.

The rollout step, the chat template, the tokenizer and the limits are today's. So the first place where the
rollouts differ is what one of them changed.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import replace

from ramet.engines.protocol import Completion, Request
from ramet.errors import ToolError
from ramet.models.encoder import Encoder
from ramet.rollout.played import given_completion
from ramet.types import CallStatus, Rollout, SegmentKind, ToolCall, ToolRecord, ToolResult, ToolSchema


class RecordedTokens:
    """`Script` of recorded rollouts. After a difference nothing is sampled: the turn ends at once."""

    def __init__(self, rollouts: Mapping[str, Rollout], encoder: Encoder, *, sample: bool) -> None:
        """`rollouts`: by the text of their keys. `sample`: requests whose beginning is as recorded are the engine's;
        otherwise they are answered with the recorded tokens.
        """
        self._rollouts, self._encoder, self._sample = rollouts, encoder, sample

    def __call__(self, request: Request) -> Completion | None:
        rollout = self._rollouts.get(request.id.rpartition("/")[0])
        n = len(request.token_ids)
        if rollout is None or n > len(ids := token_ids(rollout)) or ids[:n] != request.token_ids:
            return given_completion(request, self._encoder.eos_ids[:1], self._encoder)
        return None if self._sample else given_completion(request, sampled_after(rollout, n), self._encoder)


def token_ids(rollout: Rollout) -> array[int]:
    """All token ids of a rollout with one thread, int32."""
    ids = array("i")
    for segment in rollout.segments:
        ids.extend(segment.token_ids)
    return ids


def sampled_after(rollout: Rollout, n: int) -> array[int]:
    """The tokens of the turn that was sampled after the first `n` tokens of a rollout."""
    ids, before = array("i"), 0
    for segment in rollout.segments:
        if before >= n:
            if segment.kind is not SegmentKind.TURN:
                break
            ids.extend(segment.token_ids)
        before += len(segment)
    return ids


class PlayedTool:
    """`Tool`: the result of a call is the recorded one of the same rollout, turn, name and arguments.

    Other calls, which follow a difference, get a text that says so. The record does not say whether an error was
    returned or raised: with metadata it was returned, without it is raised.
    """

    def __init__(self, schema: ToolSchema, records: RecordedCalls) -> None:
        self.schema = replace(schema, deterministic=False, concurrent=True)  # each call has its own result
        self._records = records

    async def __call__(self, call: ToolCall) -> ToolResult:
        record = self._records.take(call)
        if record is None:
            return ToolResult(text="The record has no such call.", error=True)
        is_error = record.status is CallStatus.ERROR
        if is_error and not record.metadata:
            raise ToolError(record.text)
        return ToolResult(text=record.text, error=is_error, metadata=dict(record.metadata))


class RecordedCalls:
    """The tool calls of recorded rollouts; equal calls of one turn are answered in their order."""

    def __init__(self, rollouts: Mapping[str, Rollout]) -> None:
        """`rollouts`: by the text of their keys."""
        self._records: dict[tuple[str, int, str, str], list[ToolRecord]] = {}
        for key, rollout in rollouts.items():
            for call in rollout.tool_calls:
                self._records.setdefault(_call_key(key, call), []).append(call)

    def take(self, call: ToolCall) -> ToolRecord | None:
        records = self._records.get(_call_key(call.rollout, call))
        return None if not records else records.pop(0)


def _call_key(rollout: str, call: ToolCall | ToolRecord) -> tuple[str, int, str, str]:
    return rollout, call.turn, call.name, json.dumps(dict(call.arguments), sort_keys=True, default=repr)
