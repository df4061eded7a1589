"""Problems of written traces: malformed ones, results that would be trained on, answers that are missing.

Only the rollout step knows its format. For a step that cannot check traces, only the rows themselves are checked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ramet.data.row_problems import RowProblem, in_row_order, rows_in_words
from ramet.errors import ConfigError
from ramet.rollout.steps.trace_check import ChecksMessages, ChecksTraces, TraceCheck
from ramet.sft.conversations import SftData
from ramet.sft.exchanges import Conversation, Exchange, Returned, Written
from ramet.types import RolloutStep, TraceReader

UNOPENED = "reasoning is closed and not opened, unlike in most traces"


@dataclass(slots=True, kw_only=True)
class TraceReport:
    """The findings in the rows of some files."""

    rows: int
    checked: bool = True  # whether the rollout step can check traces
    conversations: list[Conversation] = field(default_factory=list)  # all that can be read
    sound: list[Conversation] = field(default_factory=list)  # the conversations that keep the format
    unreadable: list[RowProblem] = field(default_factory=list)  # rows without a conversation
    malformed: list[RowProblem] = field(default_factory=list)  # one for each conversation that breaks the format
    unanswered: list[RowProblem] = field(default_factory=list)  # traces without an answer, if most have one
    calls: Counter[str] = field(default_factory=Counter)  # tag -> traces in which a result follows it
    unmasked: dict[str, list[RowProblem]] = field(default_factory=dict)  # tags of unknown tools among them -> traces

    @property
    def exchanges(self) -> int:
        return sum(len(conversation.exchanges) for conversation in self.conversations)

    @property
    def problems(self) -> list[RowProblem]:
        return in_row_order([*self.unreadable, *self.malformed])

    @property
    def bad_rows(self) -> int:
        return len({(problem.file, problem.row) for problem in self.problems})

    def warnings(self) -> list[str]:
        """Return findings that are not a fault of a row, as lines."""
        lines = [_unmasked(self.unmasked)] if self.unmasked else []
        if self.unanswered:
            lines.append(f"traces without an answer, which most others have: {rows_in_words(self.unanswered)}")
        return lines


def _unmasked(tags: dict[str, list[RowProblem]]) -> str:
    places = "; ".join(f"<{tag}> in {len(rows)} ({rows_in_words(rows)})" for tag, rows in tags.items())
    return (
        "traces contain results of tools that are not configured, which are trained on as if the policy had written "
        f"them: {places}. Name the tools in `tools`, or mask their results with sft.mask_tags=[{','.join(tags)}]"
    )


def check_traces(data: SftData, step: RolloutStep, tools: Sequence[str]) -> TraceReport:
    """Check the conversations. `tools`: tags whose results are masked, in addition to the tools that rows describe."""
    report = TraceReport(
        rows=data.rows,
        checked=isinstance(step, ChecksTraces | ChecksMessages),
        conversations=data.conversations,
        unreadable=data.bad,
    )
    checked = [_Checked(conversation, step, tools) for conversation in data.conversations]
    tagged = [trace for trace in checked if any(check.has_tags for check in trace.checks)]
    opens = 2 * sum(trace.unopened for trace in tagged) <= len(tagged)  # where most begin so, the prompt opens it
    answers = 2 * sum(trace.unanswered for trace in tagged) < len(tagged)
    for trace in checked:
        fault = trace.fault or (UNOPENED if opens and trace.unopened else None)
        if fault is not None:
            report.malformed.append(trace.row(fault))
            continue
        report.sound.append(trace.conversation)
        report.calls.update(trace.called)
        if answers and trace.unanswered:
            report.unanswered.append(trace.row("no answer"))
        for tag in trace.called_in_text:
            if tag not in trace.tools:
                report.unmasked.setdefault(tag, []).append(trace.row(f"a result of <{tag}>"))
    report.malformed = [*dict.fromkeys(report.malformed)]  # of rows that are taken several times
    return report


class _Checked:
    """One conversation with the checks of its replies; none if the step cannot check."""

    def __init__(self, conversation: Conversation, step: RolloutStep, tools: Sequence[str]) -> None:
        self.conversation = conversation
        self.tools = tools = [*tools, *(schema.name for schema in conversation.tools or ())]
        self.checks: list[TraceCheck] = []
        self.called_in_text: dict[str, None] = {}  # results as separate turns are masked whatever was called
        self.apart = None
        if isinstance(step, ChecksMessages):
            self.checks += [_of_messages(exchange, step) for exchange in conversation.exchanges]
            return
        self.apart = _undescribed(conversation, step)
        written = (piece for exchange in conversation.exchanges for piece in exchange.reply)
        if any(isinstance(piece, Written) and piece.calls for piece in written):
            self.apart = "calls apart from the text ('tool_calls'), which rollout_step=hermes reads"
        if isinstance(step, ChecksTraces):
            for exchange in conversation.exchanges:
                check = step.check_trace(_text(exchange, step), tools)
                self.checks.append(check)
                apart = any(isinstance(piece, Returned) for piece in exchange.reply)
                texts = [piece.text for piece in exchange.reply if isinstance(piece, Written)] if apart else []
                within = [step.check_trace(text, tools) for text in texts] if apart else [check]
                self.called_in_text |= dict.fromkeys(name for part in within for name in part.called)

    @property
    def fault(self) -> str | None:
        return self.apart or next((check.fault for check in self.checks if check.fault is not None), None)

    @property
    def called(self) -> set[str]:
        return {name for check in self.checks for name in check.called}

    @property
    def unopened(self) -> bool:
        return any(check.unopened_think for check in self.checks)

    @property
    def unanswered(self) -> bool:
        return any(check.has_tags and not check.has_answer for check in self.checks)

    def row(self, reason: str) -> RowProblem:
        return RowProblem(file=self.conversation.file, row=self.conversation.row, reason=reason)


def _undescribed(conversation: Conversation, step: RolloutStep) -> str | None:
    """Why the step cannot describe the tools of a row, as where their names cannot be tags."""
    if not conversation.tools:
        return None
    try:
        step.system_prompt(conversation.tools)
    except ConfigError as error:
        return str(error)
    return None


def _of_messages(exchange: Exchange, step: ChecksMessages) -> TraceCheck:
    """The checks of an exchange's messages as one."""
    checks = [
        step.check_message(turn.written.text, len(turn.returned), [call.name for call in turn.written.calls])
        for turn in exchange.turns
    ]
    return TraceCheck(
        fault=next((check.fault for check in checks if check.fault is not None), None),
        has_tags=any(check.has_tags for check in checks),
        has_answer=checks[-1].has_answer,
        called=tuple(dict.fromkeys(name for check in checks for name in check.called)),
    )


def _text(exchange: Exchange, step: TraceReader) -> str:
    """The complete reply, with results that were separate turns wrapped as in a rollout."""
    return "".join(
        piece.text if isinstance(piece, Written) else "".join(part.text for part in step.result(piece.text))
        for piece in exchange.reply
    )
