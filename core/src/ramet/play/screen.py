"""The output of `ramet play`: each turn as soon as it is there, who wrote which text, and why a rollout ended."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TextIO

from rich.text import Text

from ramet.io.json_values import visible
from ramet.tracking.console import PipeConsole
from ramet.tracking.log import harmless
from ramet.types import CallStatus, Generation, Message, Rollout, Segment, SegmentKind, ToolCall, ToolRecord

ARGUMENTS = 200  # characters of a call's arguments that are shown; the text of the turn has all of them
HEADER, PROMPT, SAMPLED, CALL, INSERTED, FAULT = "bold", "dim", "", "yellow", "cyan", "red"


class Screen:
    """`ramet.rollout.observer.RolloutObserver`. Colours only in terminals; a pipe gets the same words.

    Each text has its own header line (`turn 1, sampled: …`), so that texts can be distinguished without colours.
    """

    def __init__(self, *, several: bool = False, out: TextIO | None = None) -> None:
        """`several` rollouts run at once, so each line names its rollout."""
        self._several = several
        self._console = PipeConsole(file=out or sys.stdout, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._has_prompt = False

    def began(self, rollout: str, prompt: Segment) -> None:
        """The first prompt is shown in full, as the model gets it; later ones have the same beginning."""
        if self._has_prompt:
            return
        self._has_prompt = True
        self._block(f"prompt: {_tokens(len(prompt))}", prompt.text, PROMPT)

    def sampled(self, rollout: str, turn: int, generation: Generation, n_tokens: int, seconds: float) -> None:
        cut = ", cut at the limit" if generation.truncated else ""
        header = f"{self._of(rollout)}turn {turn + 1}, sampled: {_tokens(n_tokens)} in {seconds:.2f} s{cut}"
        self._block(header, generation.text, SAMPLED)

    def calling(self, rollout: str, call: ToolCall) -> None:
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False, default=str)
        shown = arguments if len(arguments) <= ARGUMENTS else f"{arguments[:ARGUMENTS]}…"
        self._line(f"{self._of(rollout)}turn {call.turn + 1}, call: {call.name} {shown}", CALL)

    def called(self, rollout: str, record: ToolRecord) -> None:
        ended = {CallStatus.OK: "ok", CallStatus.ERROR: "an error of the call", CallStatus.INFRA: "failed"}
        more = ", cut to tools.*.max_result_tokens" if record.truncated else ""
        text = (
            f"turn {record.turn + 1}, result of {record.name}: {ended[record.status]} after {record.run_s:.2f} s{more}"
        )
        self._line(f"{self._of(rollout)}{text}", FAULT if record.status is CallStatus.INFRA else CALL)

    def rendered(self, rollout: str, messages: Sequence[Message]) -> None:
        """Show nothing: inserted text is shown as the model reads it."""

    def inserted(self, rollout: str, segment: Segment) -> None:
        header = f"{self._of(rollout)}turn {segment.turn + 1}, inserted: {_tokens(len(segment))}"
        self._block(header, segment.text, INSERTED)

    def ended(self, rollout: Rollout) -> None:
        """Why it stopped, its answer, tokens and times; of a masked one also what failed."""
        if rollout.fault is not None:
            self._line(f"{self._of(rollout.id)}masked: {rollout.fault.where}: {rollout.fault.message}", FAULT)
        answer = "" if rollout.answer is None else f", answer {rollout.answer!r}"
        turns, calls = len({s.turn for s in rollout.segments if s.is_sampled}), len(rollout.tool_calls)
        prompt = sum(len(s) for s in rollout.segments if s.kind is SegmentKind.PROMPT)
        inserted = rollout.n_response_tokens - rollout.n_sampled_tokens
        seconds, in_tools = rollout.stats.get("seconds", 0.0), rollout.stats.get("tool_s", 0.0)
        self._line(
            f"{self._of(rollout.id)}stop: {rollout.stop}{answer}; {_count(turns, 'turn')}, "
            f"{_count(calls, 'tool call')}; "
            f"tokens: {prompt} prompt, {rollout.n_sampled_tokens} sampled, {inserted} inserted; {seconds:.2f} s, of "
            f"which {in_tools:.2f} s in tools",
            HEADER,
        )

    def _of(self, rollout: str) -> str:
        return f"rollout {rollout}, " if self._several else ""

    def _block(self, header: str, text: str, style: str) -> None:
        self._line(header, HEADER)
        self._console.print(Text(visible(text), style))

    def _line(self, text: str, style: str) -> None:
        self._console.print(Text(harmless(text), style))


def _tokens(n: int) -> str:
    return _count(n, "token")


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"
