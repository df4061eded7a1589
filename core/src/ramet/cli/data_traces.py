"""Files of SFT traces in `ramet data inspect`: their rows are checked as by `ramet sft`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ramet.cli.data_report import FileReport, bad_row_lines, counted, duplicates_in_words, line
from ramet.components.toolbox import ToolNames
from ramet.config.schema import Config, Malformed
from ramet.data.files import read_rows
from ramet.data.layout import Columns
from ramet.data.row_problems import RowProblem
from ramet.errors import ConfigError
from ramet.sft.conversations import SftData, read_data
from ramet.sft.exchanges import Conversation
from ramet.sft.layouts import RowLayout, is_sft_row
from ramet.sft.traces import TraceReport, check_traces
from ramet.types import RolloutStep


def holds_traces(path: Path, config: Config) -> bool:
    """Whether the first row that can be read is a trace."""
    try:
        first = next((row for row in read_rows(path) if row.problem is None), None)
    except ConfigError:
        return False  # the next reader says why
    prompt = Columns.of(config.data.columns).prompt
    return first is not None and is_sft_row(first.values, prompt, RowLayout.of(config.sft))


def inspect_traces(source: str, step: RolloutStep, config: Config, tools: ToolNames) -> FileReport:
    """The report on a file of traces; never raises for bad data."""
    data = read_data([source], RowLayout.of(config.sft))
    report = check_traces(data, step, [*tools.schemas, *config.sft.mask_tags])
    refused = {Malformed.ERROR: report.problems, Malformed.SKIP: [], Malformed.KEEP: report.unreadable}
    bad_rows = _rows(refused[config.sft.malformed])
    repeated = duplicates_in_words(_duplicates(report.conversations), "conversation")
    names = (
        ["unmasked"] * bool(report.unmasked) + ["answers"] * bool(report.unanswered) + ["duplicates"] * bool(repeated)
    )
    warnings = zip(names, [*report.warnings(), repeated], strict=False)
    return FileReport(
        lines=[
            source,
            *_counts(data, report, config),
            *(line(name, text) for name, text in warnings),
            *(line("PROBLEM", problem.removeprefix("sft.data: ")) for problem in data.problems),
            *bad_row_lines(report.problems),
        ],
        rows=report.rows,
        conversations=len(report.conversations),
        bad_rows=bad_rows,
        skip="sft.malformed=skip",
        left_out=report.bad_rows if config.sft.malformed is Malformed.SKIP else 0,
        other_problems=len(data.problems),
        warnings=names,
    )


def _counts(data: SftData, report: TraceReport, config: Config) -> Iterator[str]:
    sound = f"{len(report.sound)} traces for `ramet sft`"
    bad = f"{_rows(report.malformed)} malformed, {_rows(report.unreadable)} unreadable"
    yield line("rows", f"{data.rows}: {sound}, {bad}")
    yield line("exchanges", str(report.exchanges))
    if not report.checked:
        yield line("format", f"not checked: rollout_step={config.rollout_step.name} cannot check traces")
    elif report.calls:
        yield line("calls", f"traces with a result, by tool: {counted(report.calls, 0)}")


def _rows(problems: Sequence[RowProblem]) -> int:
    return len({(problem.file, problem.row) for problem in problems})


def _duplicates(conversations: Sequence[Conversation]) -> list[list[int]]:
    """Rows of one conversation, for each that several have. Not a row that `num_samples` takes again."""
    rows: dict[Any, dict[str, int]] = {}
    for conversation in conversations:
        content = (conversation.system, conversation.exchanges, repr(conversation.tools))
        rows.setdefault(content, {})[conversation.where] = conversation.row
    return [[*alike.values()] for alike in rows.values() if len(alike) > 1]
