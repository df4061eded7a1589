"""`ramet data inspect FILE…`: what is in data files, and the prompts that a run would make of them.

`ramet data from-rollouts` is in `data_rollouts`.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.cli import data_rollouts
from ramet.cli.data_report import FileReport, bad_row_lines, counted, duplicates_in_words, line, some, summary
from ramet.cli.data_traces import holds_traces, inspect_traces
from ramet.cli.terminal import Parser, say
from ramet.components.build import Components
from ramet.components.prompts import describe_foreign_tags, describe_promised_tags, foreign_tags, task_prompts
from ramet.components.toolbox import ToolNames, tool_names
from ramet.config.compose import compose
from ramet.config.schema import ChatMarkup, Config, OnBadRow
from ramet.config.sections import without_model
from ramet.data.benchmarks import is_benchmark
from ramet.data.dataset_info import find_sets
from ramet.data.inspect import Inspection, inspect_files, lengths
from ramet.data.layout import Columns
from ramet.data.row_problems import in_row_order
from ramet.errors import ConfigError, raise_all
from ramet.io.json_values import visible_lines
from ramet.rollout.prompts import markup_in
from ramet.runs.hub_inputs import fetched, local_data
from ramet.types import RolloutStep, Task

PROMPT_LINES = 60
FROM_ROLLOUTS = "from-rollouts"


def run(arguments: Sequence[str]) -> int:
    if arguments and arguments[0] == FROM_ROLLOUTS:
        return data_rollouts.run(arguments[1:])
    parser = Parser(
        prog="ramet data",
        add_help=False,
        usage="ramet data inspect FILE… [--model DIR] [--prompts N] [key=value …]\n"
        f"       ramet data {FROM_ROLLOUTS} RUN [--sft FILE] [--pairs FILE] (see its --help)",
        description="What is in data files: schema, sources, prompt lengths, duplicates, bad rows, prompts.",
        epilog="Keys of data, model, rollout_step, tools and sft count, as in data.columns.prompt=question "
        "tools=[python]. Ends with exit code 1 if there are problems.",
    )
    parser.add_argument("what", nargs="?", choices=["inspect", FROM_ROLLOUTS])
    parser.add_argument(
        "files", nargs="*", help="parquet, JSON lines or JSON arrays; default: data.train, data.valid and sft.data"
    )
    parser.add_argument("--model", help="a model, by folder or name: lengths in tokens, prompts as it sees them")
    parser.add_argument("--prompts", type=int, default=1, help="how many prompts to print of each file (default: 1)")
    options = parser.read(arguments if arguments else ["--help"])
    if options is None:
        return 0
    if options.prompts < 0:
        raise ConfigError(f"--prompts={options.prompts}: must be at least 0")
    overrides = [text for text in options.files if "=" in text and not Path(text).exists()]
    files = [text for text in options.files if text not in overrides]
    report = inspect(files, overrides, model=options.model, prompts=options.prompts)
    say(report.text)
    return 0 if report.sound else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """How a run would see the prompts: through the model's chat template, or, without a model, as plain messages."""

    unit: str
    count: Callable[[Task], int]
    text: Callable[[Task], str]
    chat_markup: Callable[[Task], int]  # special tokens of the chat template in a task's own text


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    text: str
    sound: bool  # no problems: a run would take the data


def inspect(files: Sequence[str], overrides: Sequence[str], *, model: Path | str | None, prompts: int) -> DataReport:
    """Raises `ConfigErrors` for what keeps it from looking at the files at all."""
    config = _config(overrides, model, reads_data=not files)
    sources = local_data(files) or [*config.data.train, *config.data.valid, *config.sft.data, *config.sft.valid]
    found = find_sets([source for source in sources if not is_benchmark(source)])
    raise_all(found.problems)
    if not found.sets:
        raise ConfigError("which data? name files, as in `ramet data inspect tasks.parquet`, or data.train=[…]")
    tools = tool_names(config)
    step = Components(config).step
    views = _prompts(step, config, tools)
    traces = {one.name for one in found.sets if one.entry is not None or holds_traces(one.files[0], config)}
    paths = [one.files[0] for one in found.sets if one.name not in traces]
    tasks = iter(inspect_files(paths, Columns.of(config.data.columns)))
    reports = [
        inspect_traces(one.name, step, config, tools)
        if one.name in traces
        else _report(next(tasks), step, config, tools, views, prompts)
        for one in found.sets
    ]
    text = "\n\n".join("\n".join(report.lines) for report in reports)
    return DataReport(text=f"{text}\n\n{summary(reports)}", sound=all(report.sound for report in reports))


def _config(overrides: Sequence[str], model: Path | str | None, *, reads_data: bool) -> Config:
    """Return the configuration; data that it names is fetched only where no file is given."""
    named = [f"model.path={model}"] if model is not None else []
    resolved = compose(without_model([*overrides, *named]), job="data")  # only lengths in tokens need a model
    return fetched(resolved, weights=False, data=reads_data).config


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
        task_prompt = prompt(task)
        return encoder.prompt(task_prompt.messages, task_prompt.tools)

    return Prompts(
        unit="tokens",
        count=lambda task: len(ids(task)),
        text=lambda task: encoder.decode(ids(task)),
        chat_markup=lambda task: markup_in(prompt(task), encoder),
    )


def _report(
    inspection: Inspection, step: RolloutStep, config: Config, tools: ToolNames, views: Prompts, prompts: int
) -> FileReport:
    warnings = {
        "tags": _tags(inspection, step, config, tools),
        "markup": _chat_markup(inspection, config, views),
        "duplicates": duplicates_in_words(inspection.duplicates, "prompt"),
    }
    said = [line(name, text) for name, text in warnings.items() if text]
    if not warnings["markup"] or config.data.chat_markup is ChatMarkup.NEUTRALISE:
        del warnings["markup"]
    # Where a column is missing all rows are bad.
    bad = [] if inspection.problems and not inspection.tasks else inspection.bad
    problems = [line("PROBLEM", problem) for problem in inspection.problems]
    skipped = config.data.on_bad_row is OnBadRow.SKIP
    shown = (text for task in inspection.tasks[:prompts] for text in _prompt(task, views))
    return FileReport(
        lines=[
            str(inspection.path),
            *_counts(inspection, config, views),
            *said,
            *problems,
            *bad_row_lines(in_row_order([*bad, *inspection.taken])),
            *shown,
        ],
        rows=inspection.rows,
        tasks=len(inspection.tasks),
        bad_rows=0 if skipped else len(bad),
        skip="data.on_bad_row=skip",
        left_out=len(bad) if skipped else 0,
        other_problems=len(inspection.problems) + len(inspection.taken),
        warnings=[name for name, text in warnings.items() if text],
    )


def _counts(inspection: Inspection, config: Config, views: Prompts) -> Iterator[str]:
    yield line(
        "rows",
        f"{inspection.rows}: {len(inspection.tasks)} tasks, {len(inspection.bad)} bad, {inspection.repaired} repaired",
    )
    if inspection.repaired:
        yield line("repaired", f"\\boxed in {some(inspection.repaired, 'row')}, written as a backspace and 'oxed'")
    if inspection.answers:
        yield line("answer in", ", ".join(f"{name} ({some(n, 'row')})" for name, n in inspection.answers.most_common()))
    for name, types in inspection.columns.items():
        yield line("column", f"{name:14}  {counted(types, inspection.rows)}")
    if inspection.tasks:
        yield line("sources", counted(inspection.sources, 0))
        restricted = Counter(
            {
                t if isinstance(t, str) else "all configured" if t is None else "[" + ", ".join(t) + "]": n
                for t, n in inspection.tools.items()
            }
        )
        yield line("tools", counted(restricted, 0))
    yield from _lengths(inspection, config, views)


def _tags(inspection: Inspection, step: RolloutStep, config: Config, tools: ToolNames) -> str:
    foreign = foreign_tags(step, config, inspection.tasks, tools)
    if not foreign:
        return ""
    return describe_foreign_tags(foreign, config, tools) if tools.schemas else describe_promised_tags(foreign)


def _lengths(inspection: Inspection, config: Config, views: Prompts) -> Iterator[str]:
    counts = [views.count(task) for task in inspection.tasks]
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
    yield line("prompts", text)


def _chat_markup(inspection: Inspection, config: Config, views: Prompts) -> str:
    counts = {task.id: n for task in inspection.tasks if (n := views.chat_markup(task))}
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
