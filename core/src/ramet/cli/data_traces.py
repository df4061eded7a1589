"""Files of SFT traces in `ramet data inspect`: the check of their rows is that of `ramet sft`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ramet.cli.data_report import FileReport, bad_row_lines, counted, duplicates_in_words, line
from ramet.components.toolbox import ToolNames
from ramet.config.schema import Config, Malformed
from ramet.data.files import read_rows
from ramet.data.layout import Columns
from ramet.errors import ConfigError
from ramet.sft.conversations import SftData, is_trace, read_files
from ramet.sft.exchanges import Conversation
from ramet.sft.traces import TraceReport, check_traces
from ramet.types import RolloutStep


def holds_traces(path: Path, config: Config) -> bool:
    """Whether the first row that can be read is a trace."""
    try:
        first = next((row for row in read_rows(path) if row.problem is None), None)
    except ConfigError:
        return False  # the next reader says why
    return first is not None and is_trace(first.values, Columns.of(config.data.columns).prompt)


def inspect_traces(path: Path, step: RolloutStep, config: Config, tools: ToolNames) -> FileReport:
    """The report on a file of traces; never raises for bad data."""
    data = read_files([path])
    report = check_traces(data, step, [*tools.schemas, *config.sft.mask_tags])
    refused = {Malformed.ERROR: report.problems, Malformed.SKIP: [], Malformed.KEEP: report.unreadable}
    bad_rows = len({problem.row for problem in refused[config.sft.malformed]})
    repeated = duplicates_in_words(_duplicates(report.conversations), "conversation")
    names = (
        ["unmasked"] * bool(report.unmasked) + ["answers"] * bool(report.unanswered) + ["duplicates"] * bool(repeated)
    )
    warnings = zip(names, [*report.warnings(), repeated], strict=False)
    return FileReport(
        lines=[
            str(path),
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
    malformed = len({problem.row for problem in report.malformed})
    unreadable = len({problem.row for problem in report.unreadable})
    sound = f"{len(report.sound)} traces for `ramet sft`"
    yield line("rows", f"{data.rows}: {sound}, {malformed} malformed, {unreadable} unreadable")
    yield line("exchanges", str(report.exchanges))
    if not report.checked:
        yield line("format", f"not checked: rollout_step={config.rollout_step.name} cannot check traces")
    elif report.calls:
        yield line("calls", f"traces with a result, by tool: {counted(report.calls, 0)}")


def _duplicates(conversations: Sequence[Conversation]) -> list[list[int]]:
    """Rows of one conversation, for each that several have."""
    rows: dict[Any, list[int]] = {}
    for conversation in conversations:
        rows.setdefault((conversation.system, conversation.exchanges), []).append(conversation.row)
    return [alike for alike in rows.values() if len(alike) > 1]
