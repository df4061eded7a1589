"""`ramet data inspect FILE…`: what is in data files, and the prompts that a run would make of them."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ramet.components.build import Components
from ramet.components.prompts import describe_foreign_tags, foreign_tags, task_prompts
from ramet.components.toolbox import ToolNames, tool_names
from ramet.config.compose import compose
from ramet.config.schema import ChatMarkup, Config
from ramet.data.benchmarks import is_benchmark
from ramet.data.files import find_files
from ramet.data.inspect import Inspection, inspect_files, lengths
from ramet.errors import ConfigError, raise_all
from ramet.io.json_values import visible_lines
from ramet.types import RolloutStep, Task

SHOWN = 10  # bad rows, sources, types of a column
PROMPT_LINES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """How a run would see the prompts: through the model's chat template, or, without a model, as plain messages."""

    unit: str
    count: Callable[[Task], int]
    text: Callable[[Task], str]
    chat_markup: Callable[[Task], int]  # special tokens of the chat template in a task's own text


def inspect(files: Sequence[str], overrides: Sequence[str], *, model: Path | None, prompts: int) -> str:
    """The report. Raises `ConfigErrors`."""
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
    return "\n\n".join("\n".join(_report(one, step, config, tools, views, prompts)) for one in found)


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
) -> Iterator[str]:
    yield str(found.path)
    for problem in found.problems:
        yield f"  PROBLEM     {problem}"
    yield _line("rows", f"{found.rows}: {len(found.tasks)} tasks, {len(found.bad)} bad, {found.repaired} repaired")
    yield _line("answer in", ", ".join(f"{name} ({rows} rows)" for name, rows in found.answers.most_common()))
    for name, types in found.columns.items():
        yield _line("column", f"{name:14}  {_counted(types, found.rows)}")
    yield _line("sources", _counted(found.sources, 0))
    restricted = Counter(
        {"all configured" if t is None else "[" + ", ".join(t) + "]": n for t, n in found.tools.items()}
    )
    yield _line("tools", _counted(restricted, 0))
    yield from _lengths(found, config, views)
    if foreign := foreign_tags(step, config, found.tasks, tools):
        yield _line("tags", describe_foreign_tags(foreign, tools))
    yield from _chat_markup(found, config, views)
    if found.duplicates:
        yield _line("duplicates", f"{len(found.duplicates)} rows repeat an earlier prompt; {found.duplicates[0]}")
    for problem in found.bad[:SHOWN]:
        yield _line("bad row", problem)
    if len(found.bad) > SHOWN:
        yield _line("", f"and {len(found.bad) - SHOWN} more bad rows")
    for task in found.tasks[:prompts]:
        yield from _prompt(task, views)


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


def _chat_markup(found: Inspection, config: Config, views: Prompts) -> Iterator[str]:
    counts = {task.id: n for task in found.tasks if (n := views.chat_markup(task))}
    if counts:
        becomes = {
            ChatMarkup.KEEP: "which become special tokens; data.chat_markup=neutralise has them read as text",
            ChatMarkup.NEUTRALISE: "which are read as text",
        }[config.data.chat_markup]
        first = next(iter(counts))
        yield _line("markup", f"{len(counts)} prompts hold {sum(counts.values())} marks, as {first} does, {becomes}")


def _prompt(task: Task, views: Prompts) -> Iterator[str]:
    lines = list(visible_lines(views.text(task)))
    yield ""
    yield f"  prompt of {' '.join(visible_lines(task.id))}, answer {' | '.join(map(repr, task.answer))}"
    yield from (f"    | {line}" for line in lines[:PROMPT_LINES])
    if len(lines) > PROMPT_LINES:
        yield f"    … {len(lines) - PROMPT_LINES} more lines"
