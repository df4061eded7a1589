"""Replay: a state that cannot be copied is opened again, and what happened to it before the fork point happens again.

Tools get the recorded calls once more. An environment takes the recorded turns once more: its `generate` gives the text
that the policy had written, and the calls that it makes are made again. The results must equal the recorded ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramet.plugins import origin
from ramet.rollout.faults import RolloutFailed, StateFailed
from ramet.rollout.group_context import GroupContext
from ramet.rollout.stateful import ENVIRONMENT, StatefulComponent
from ramet.rollout.tree import LiveRollout
from ramet.rollout.turn import RolloutTurn, first_inserts
from ramet.types import Generation, Insert, SegmentKind, StepResult, StopReason, ToolCall


class Replayer:
    """Brings a freshly opened state of a fork to its fork point."""

    def __init__(self, context: GroupContext) -> None:
        self._context = context
        self._step: Any = context.step

    async def __call__(self, live: LiveRollout, component: StatefulComponent, state: Any, environment: Any) -> None:
        """Raises `StateFailed` if a result differs from the record's."""
        if component.name == ENVIRONMENT:
            await self._turns(live, state)
        else:
            await self._calls(live, component, state, environment)

    async def _calls(self, live: LiveRollout, component: StatefulComponent, state: Any, environment: Any) -> None:
        """Calls that never reached the tool (its arguments were wrong) are left out."""
        before = [call for call in live.tool_calls if call.attempts and call.turn < live.first_turn]
        for record in [call for call in before if call.name in component.users]:
            call = ToolCall(
                name=record.name,
                arguments=record.arguments,
                rollout=str(live.key),
                turn=record.turn,
                task=self._context.task,
                state=state,
                environment=environment,
            )
            now, error = await self._context.runner(call.name).run(call, ends_at=live.ends_at)
            if isinstance(error, RolloutFailed):
                text = f"replay: the call of turn {record.turn} failed: {now.text}"
                raise StateFailed(component.name, text, defect=error.defect)
            what = f"the call of turn {record.turn} of {origin(component.owner)}"
            _compare(component.name, what, now.text, record.text)

    async def _turns(self, live: LiveRollout, state: Any) -> None:
        who = f" of {origin(self._step)}"
        if hasattr(self._step, "begin"):
            first = first_inserts(await self._step.begin(state), live, self._context)
            _compare(ENVIRONMENT, f"begin{who}", _text(first), live.inserted(-1))
        for turn in range(live.first_turn):
            past = live.until(turn)
            result = StepResult(stop=StopReason.CALL_LIMIT)
            async with _RecordedTurn(past, live, self._context, state) as recorded:
                result = await self._step(recorded.state, recorded)
            stopped = f" and stopped with {result.stop}" if result.stop is not None else ""
            _compare(ENVIRONMENT, f"turn {turn}{who}", _text(result.insert) + stopped, live.inserted(turn))


class _RecordedTurn(RolloutTurn):
    """A past turn of a rollout: `generate` gives what the policy wrote then."""

    def __init__(self, past: LiveRollout, live: LiveRollout, context: GroupContext, environment: Any) -> None:
        super().__init__(past, context, environment)
        self._recorded = live

    async def generate(self, *, stop: Sequence[str] = ()) -> Generation:
        turn = self.live.turn
        for segment in self._recorded.segments:
            if segment.kind is SegmentKind.TURN and segment.turn == turn:
                self.live.append(segment)
        return self._recorded.turns[turn].generation or self._generation(stop)

    def _generation(self, stop: Sequence[str]) -> Generation:
        """Return the generation of a stored prefix's turn, whose record has tokens and text.

        A turn that the token limit ended was the last.
        """
        sampled = self.live.sampled_in_turn
        text = "".join(segment.text for segment in sampled)
        finished = bool(sampled) and sampled[-1].token_ids[-1] in self.context.encoder.eos_ids
        stop_string = None if finished else next((candidate for candidate in stop if text.endswith(candidate)), None)
        return Generation(text=text, stop=stop_string, finished=finished, truncated=False)


def _text(parts: Sequence[Insert]) -> str:
    return "".join(part.text for part in parts)


def _compare(name: str, what: str, now: str, recorded: str) -> None:
    if now != recorded:
        text = f"replay diverged: {what} gave {now[:200]!r}, where the record has {recorded[:200]!r}"
        raise StateFailed(name, text, defect=True)  # a replayed state must give the same again
