"""`ramet data inspect FILE…`: what is in data files, and the prompts that a run would make of them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.components.build import Components
from ramet.components.prompts import describe_foreign_tags, describe_promised_tags, foreign_tags, task_prompts
from ramet.components.toolbox import ToolNames, tool_names
from ramet.config.compose import compose
from ramet.config.schema import ChatMarkup, Config, OnBadRow
from ramet.data.benchmarks import is_benchmark
from ramet.data.files import find_files
from ramet.data.inspect import Inspection, inspect_files, lengths
from ramet.data.row_problems import SHOWN_ROWS, RowProblem, grouped
from ramet.errors import ConfigError, raise_all
from ramet.io.json_values import visible_lines
from ramet.types import RolloutStep, Task

SHOWN = 10  # kinds of bad rows, sources, types of a column
PROMPT_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """How a run would see the prompts: through the model's chat template, or, without a model, as plain messages."""

    unit: str
    count: Callable[[Task], int]
    text: Callable[[Task], str]
    chat_markup: Callable[[Task], int]  # special tokens of the chat template in a task's own text


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """One file: what is printed of it, and what the last line counts."""

    lines: list[str]
    rows: int
    tasks: int
    bad_rows: int = 0
    skipped: bool = False  # bad rows are, so they are no problem
    other_problems: int = 0
    warnings: Sequence[str] = ()  # names of the lines that warn


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    text: str
    sound: bool  # no problems: a run would take the data


def inspect(files: Sequence[str], overrides: Sequence[str], *, model: Path | None, prompts: int) -> DataReport:
    """Raises `ConfigErrors` for what keeps it from looking at the files at all."""
    config = _config(overrides, model)
    sources = [*files] or [*config.data.train, *config.data.valid]
    paths, problems = find_files([source for source in sources if not is_benchmark(source)])
    raise_all(problems)
    if not paths:
        raise ConfigError("which data? name files, as in `ramet data inspect tasks.parquet`, or data.train=[…]")
    tools = tool_names(config)
    step = Components(config).step
    views = _prompts(step, config, tools)
    found = inspect_files(paths, config.data.columns)
    reports = [_report(one, step, config, tools, views, prompts) for one in found]
    text = "\n\n".join("\n".join(one.lines) for one in reports)
    return DataReport(
        text=f"{text}\n\n{_summary(reports)}",
        sound=not any(one.other_problems or (one.bad_rows and not one.skipped) for one in reports),
    )


def _summary(reports: Sequence[FileReport]) -> str:
    """One line: what there is, problems by kind, and which lines above warn."""
    rows, tasks = sum(one.rows for one in reports), sum(one.tasks for one in reports)
    bad = sum(one.bad_rows for one in reports if not one.skipped)
    left_out = sum(one.bad_rows for one in reports if one.skipped)
    other = sum(one.other_problems for one in reports)
    problems = [f"{_some(bad, 'bad row')} (left out with data.on_bad_row=skip)"] if bad else []
    problems += [_some(other, "other problem" if bad else "problem")] if other else []
    warnings = dict.fromkeys(name for one in reports for name in one.warnings)
    parts = [
        f"{_some(len(reports), 'file')}, {_some(rows, 'row')}: {_some(tasks, 'task')}",
        " and ".join(problems) or "no problems",
        f"{_some(left_out, 'bad row')} left out" if left_out else "",
        f"warnings: {', '.join(warnings)}" if warnings else "",
    ]
    return "; ".join(part for part in parts if part)


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _config(overrides: Sequence[str], model: Path | None) -> Config:
    named = [f"model.path={model}"] if model is not None else []
    if not named and not any(text.lstrip("+").startswith(("model.path=", "experiment=")) for text in overrides):
        named = ["model.path=''"]  # a model is needed for lengths in tokens only
    return compose([*overrides, *named], job="data").config


def _prompts(step: RolloutStep, config: Config, tools: ToolNames) -> Prompts:
    prompt = task_prompts(step, config, tools)
    if not config.model.path:
        return Prompts(
            unit="characters",
            count=lambda task: sum(len(message.content) for message in prompt(task).messages),
            text=lambda task: "\n".join(f"[{message.role}]\n{message.content}" for message in prompt(task).messages),
            chat_markup=lambda task: 0,
        )
    from ramet.models.loading import build_encoder

    encoder = build_encoder(config)

    def ids(task: Task) -> array[int]:
        made = prompt(task)
        return encoder.prompt(made.messages, made.tools)

    return Prompts(
        unit="tokens",
        count=lambda task: len(ids(task)),
        text=lambda task: encoder.decode(ids(task)),
        chat_markup=lambda task: encoder.chat_markup(prompt(task).messages),
    )


def _report(
    found: Inspection, step: RolloutStep, config: Config, tools: ToolNames, views: Prompts, prompts: int
) -> FileReport:
    warnings = {
        "tags": _tags(found, step, config, tools),
        "markup": _chat_markup(found, config, views),
        "duplicates": _duplicates(found),
    }
    said = [_line(name, text) for name, text in warnings.items() if text]
    if not warnings["markup"] or config.data.chat_markup is ChatMarkup.NEUTRALISE:
        del warnings["markup"]
    bad = [] if found.problems and not found.tasks else found.bad  # where a column is missing all rows are bad
    shown = (line for task in found.tasks[:prompts] for line in _prompt(task, views))
    return FileReport(
        lines=[str(found.path), *_counts(found, config, views), *said, *_problems(found, bad), *shown],
        rows=found.rows,
        tasks=len(found.tasks),
        bad_rows=len(bad),
        skipped=config.data.on_bad_row is OnBadRow.SKIP,
        other_problems=len(found.problems) + len(found.taken),
        warnings=[name for name, text in warnings.items() if text],
    )


def _counts(found: Inspection, config: Config, views: Prompts) -> Iterator[str]:
    yield _line("rows", f"{found.rows}: {len(found.tasks)} tasks, {len(found.bad)} bad, {found.repaired} repaired")
    yield _line("answer in", ", ".join(f"{name} ({_some(n, 'row')})" for name, n in found.answers.most_common()))
    for name, types in found.columns.items():
        yield _line("column", f"{name:14}  {_counted(types, found.rows)}")
    if found.tasks:
        yield _line("sources", _counted(found.sources, 0))
        restricted = Counter(
            {"all configured" if t is None else "[" + ", ".join(t) + "]": n for t, n in found.tools.items()}
        )
        yield _line("tools", _counted(restricted, 0))
    yield from _lengths(found, config, views)


def _problems(found: Inspection, bad: Sequence[RowProblem]) -> Iterator[str]:
    """Rows that are bad alike are one line."""
    yield from (_line("PROBLEM", problem) for problem in found.problems)
    rows = grouped([*bad, *found.taken])
    yield from (_line("bad row", line) for line in rows[:SHOWN])
    if len(rows) > SHOWN:
        yield _line("", f"and {len(rows) - SHOWN} more kinds of bad rows")


def _tags(found: Inspection, step: RolloutStep, config: Config, tools: ToolNames) -> str:
    foreign = foreign_tags(step, config, found.tasks, tools)
    if not foreign:
        return ""
    return describe_foreign_tags(foreign, tools) if tools.schemas else describe_promised_tags(foreign)


def _duplicates(found: Inspection) -> str:
    groups = found.duplicates
    if not groups:
        return ""
    places = "; ".join(f"rows {_numbers(rows)}" for rows in groups[:SHOWN_ROWS])
    more = f"; and {_some(len(groups) - SHOWN_ROWS, 'more prompt')}" if len(groups) > SHOWN_ROWS else ""
    repeats = sum(len(rows) - 1 for rows in groups)
    return f"{_some(repeats, 'row')} repeat{'s' if repeats == 1 else ''} the prompt of an earlier one: {places}{more}"


def _numbers(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - SHOWN_ROWS} more" if len(rows) > SHOWN_ROWS else ""
    return ", ".join(map(str, rows[:SHOWN_ROWS])) + more


def _line(name: str, text: str) -> str:
    return f"  {name:10}  {' '.join(visible_lines(text))}".rstrip()


def _counted(counts: Counter[str], rows: int) -> str:
    """`text 9, null 1`; of a single one that all rows have, the name alone."""
    if len(counts) == 1 and rows == counts.total():
        return next(iter(counts))
    shown = ", ".join(f"{name} {count}" for name, count in counts.most_common(SHOWN))
    return shown + (f", and {len(counts) - SHOWN} others" if len(counts) > SHOWN else "")


def _lengths(found: Inspection, config: Config, views: Prompts) -> Iterator[str]:
    counts = [views.count(task) for task in found.tasks]
    numbers = lengths(counts)
    if numbers is None:
        return
    text = (
        f"{numbers.least} to {numbers.most} {views.unit}: median {numbers.median}, mean {numbers.mean:.0f}, "
        f"95 % up to {numbers.p95}, 99 % up to {numbers.p99}"
    )
    if config.model.path:
        limit = config.data.max_prompt_tokens
        text += f"; {sum(count > limit for count in counts)} over data.max_prompt_tokens={limit}"
    yield _line("prompts", text)


def _chat_markup(found: Inspection, config: Config, views: Prompts) -> str:
    counts = {task.id: n for task in found.tasks if (n := views.chat_markup(task))}
    if not counts:
        return ""
    becomes = {
        ChatMarkup.KEEP: "which become special tokens; data.chat_markup=neutralise has them read as text",
        ChatMarkup.NEUTRALISE: "which are read as text",
    }[config.data.chat_markup]
    first = next(iter(counts))
    return f"{len(counts)} prompts hold {sum(counts.values())} marks, as {first} does, {becomes}"


def _prompt(task: Task, views: Prompts) -> Iterator[str]:
    lines = list(visible_lines(views.text(task)))
    yield ""
    yield f"  prompt of {' '.join(visible_lines(task.id))}, answer {' | '.join(map(repr, task.answer))}"
    yield from (f"    | {line}" for line in lines[:PROMPT_LINES])
    if len(lines) > PROMPT_LINES:
        yield f"    … {len(lines) - PROMPT_LINES} more lines"
