"""Everything before a run: all checks, reported together, and then the data. Nothing is written here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ramet.cluster.check import check_cluster
from ramet.components.build import Components
from ramet.components.checks import check_components, check_forks, check_needs, warn_of_ratio_one
from ramet.components.engines import check_engine
from ramet.components.prompts import check_prompts, prompt_record, task_prompts, warn_of_foreign_tags
from ramet.components.toolbox import ToolNames, tool_names
from ramet.config.checks import check
from ramet.config.resolved import Resolved
from ramet.config.schema import ChatMarkup, Config, DataConfig, Order
from ramet.data.benchmarks import benchmark_names
from ramet.data.filter import (
    Filtered,
    difficulty_of,
    leave_out_by_difficulty,
    leave_out_long,
    warn_of_chat_markup,
    warn_of_overlap,
)
from ramet.data.layout import Columns
from ramet.data.sampler import Sampler
from ramet.data.tasks import CheckTask, TaskSet, fingerprint, load_tasks
from ramet.errors import ConfigError, MissingHere, collected, raise_all, set_aside_missing
from ramet.models.check import check_model, has_tokenizer
from ramet.models.encoder import Encoder
from ramet.models.loading import build_encoder
from ramet.models.teacher import check_teacher
from ramet.models.torch_setup import check_torch
from ramet.policy.check import check_policy
from ramet.rollout.prompts import Prompt, markup_in
from ramet.runs.manifest import DataRecord, model_sha256
from ramet.runs.selection import selection_problem
from ramet.tracking.trackers import check_trackers
from ramet.train.data_sources import check_sources
from ramet.train.valid_data import ValidData, load_valid
from ramet.types import Task

logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """The parts of a run before anything starts, and its manifest's entries on data and model."""

    components: Components
    tasks: list[Task]
    valid: ValidData
    sampler: Sampler
    total_steps: int
    too_long: int  # training tasks left out
    tools: ToolNames
    foreign_tags: dict[str, list[str]]  # tag that a prompt names and no tool serves -> ids of the tasks
    data: dict[str, DataRecord]
    model: str  # fingerprint
    prompt: dict[str, Any]  # how the model is asked, for its card
    missing: Sequence[MissingHere] = ()  # of a plan for another machine: what this one lacks


def prepare(resolved: Resolved, *, elsewhere: bool = False) -> PreparedRun:
    """Raises `ConfigErrors` with every problem found.

    `elsewhere`: a plan for GPUs of another machine, for which this one may lack weights, tokenizer and packages.
    Without a tokenizer no task is left out for its length.
    """
    config = resolved.config
    components = Components(config)
    problems = _check_settings(resolved, components, elsewhere)
    missing = set_aside_missing(problems) if elsewhere else []
    problems += _collect(lambda: check_needs(components, config), problems) or []
    train = loaded = None
    tools = _collect(lambda: tool_names(config), problems)
    if tools is not None and not problems:
        problems += check_prompts(components.step, config, tools) + check_forks(components, tools.stateful)
    scorer = _collect(lambda: components.scorer, problems)
    check = None if scorer is None else scorer.task_problem
    if config.data.train:  # otherwise the settings' check has said so
        train = _collect(lambda: _load_train(config, components, check), problems)
    if config.data.valid:
        names = None if tools is None else tools.all
        loaded = _collect(lambda: load_valid(config, components, names, check), problems)
    valid, played = (None, ValidData()) if loaded is None else loaded
    if tools is not None:
        problems += check_task_tools(
            [task for task_set in (train, valid) if task_set for task in task_set.tasks], tools
        )
        if scorer is not None:
            problems += _collect(lambda: scorer.tool_problems([*tools.schemas]), problems) or []
    if train is not None and (valid is not None or not config.data.valid):
        problems += check_sources(config, train, valid)
    if valid is not None and not problems:
        problems += _check_keep_best(config, components, played)
    raise_all(dict.fromkeys(problems))
    if (chosen_on_test := selection_problem(config.train.keep_best, config.data.valid)) is not None:
        logger.warning("%s", chosen_on_test)
    if config.data.valid and not config.train.eval_every and not config.train.eval_first:
        logger.warning(
            "data.valid is never measured, since train.eval_every=0; set train.eval_every=N for every N steps"
        )
    assert train is not None and tools is not None
    return replace(_prepared(resolved, components, train, valid, played, tools), missing=missing)


def _check_settings(resolved: Resolved, components: Components, elsewhere: bool) -> list[str]:
    """All that can be checked without the data."""
    config = resolved.config
    return [
        *check(resolved, "train"),
        *check_model(config.model),
        *check_torch(config.run, config.model),
        *check_engine(config),
        *check_cluster(config),
        *check_policy(config, elsewhere=elsewhere),
        *check_teacher(config),
        *check_trackers(config, resolved.set_by_user),
        *check_components(components, config, training=True),
        *unused_benchmarks(resolved),
    ]


def check_task_tools(tasks: Sequence[Task], tools: ToolNames) -> list[str]:
    """Tasks may restrict tools to configured ones only."""
    configured, problems = tools.all, tools.unanswered(tasks)
    named = (task.tools for task in tasks if task.schemas is None)
    unknown = sorted({tool for names in named for tool in names or ()} - set(configured))
    if unknown:
        names = ", ".join(map(repr, unknown))
        problems.append(f"tools: the data names {names}; configured: {', '.join(configured) or 'none'}")
    return problems


def unused_benchmarks(resolved: Resolved) -> Iterator[str]:
    """Yield settings of benchmarks that have no effect: a training run reads those that its data names."""
    data = resolved.config.data
    used = benchmark_names([*data.train, *data.valid])
    for key in sorted(resolved.set_by_user):
        section, _, rest = key.partition(".")
        if section != "benchmarks":
            continue
        name, _, option = rest.partition(".")
        unused = {name} - used if name else {*resolved.config.benchmarks} - used
        if unused:
            first = min(unused)
            yield (
                f"{key}: `ramet train` reads the benchmarks that data.train or data.valid name, and {first} is not one "
                f"of them; name it, as in data.valid=[benchmark:{first}/test], or leave the key out"
            )
        elif option == "split" or (option == "limit" and name not in benchmark_names(data.valid)):
            other = (
                "data.limits.train or data.limits.valid" if option == "limit" else f"benchmark:{name}/SPLIT in the data"
            )
            yield f"{key}: `ramet train` does not read it; set {other}"


def _check_keep_best(config: Config, components: Components, valid: ValidData) -> list[str]:
    wanted = config.train.keep_best
    allowed = valid.metrics(components.scorer, config.train.eval_k)
    if wanted is None or wanted in allowed:
        return []
    return [f"train.keep_best={wanted}: no metric of the validation; allowed: {', '.join(allowed)}"]


def _load_train(config: Config, components: Components, check: CheckTask | None) -> TaskSet:
    data = config.data
    return load_tasks(
        data.train,
        Columns.of(data.columns),
        limit=data.limits.get("train"),
        on_bad_row=data.on_bad_row,
        build=components.benchmark,
        check=check,
    )


def _collect(load: Callable[[], T], problems: list[str]) -> T | None:
    with collected(problems):
        return load()
    return None


def _prepared(
    resolved: Resolved,
    components: Components,
    train: TaskSet,
    valid: TaskSet | None,
    played_valid: ValidData,
    tools: ToolNames,
) -> PreparedRun:
    config = resolved.config
    encoder = build_encoder(config) if has_tokenizer(config.model) else None
    prompt = task_prompts(components.step, config, tools)

    def short_enough(tasks: list[Task]) -> Filtered:
        if encoder is None:
            return Filtered(tasks=tasks, left_out=0, longest=0)
        return leave_out_long(tasks, prompt_counter(encoder, prompt), config.data.max_prompt_tokens)

    kept = short_enough(train.tasks)
    tasks = _within_difficulty(config.data, kept.tasks)
    kept_valid = short_enough(valid.tasks) if valid else None
    if encoder is not None and config.data.chat_markup is ChatMarkup.KEEP:
        for key, kept_tasks in (("data.train", tasks), ("data.valid", kept_valid.tasks if kept_valid else [])):
            warn_of_chat_markup(kept_tasks, lambda task: markup_in(prompt(task), encoder), key)
    warn_of_ratio_one(config, components.loss)
    warn_of_overlap(tasks, kept_valid.tasks if kept_valid else [])
    played = [*tasks, *(kept_valid.tasks if kept_valid else [])]
    foreign = warn_of_foreign_tags(components.step, config, played, tools)
    sampler = make_sampler(config, tasks)
    data = {"train": _record(train, kept, tasks)}
    if valid and kept_valid:
        data["valid"] = _record(valid, kept_valid, kept_valid.tasks)
    return PreparedRun(
        components=components,
        tasks=tasks,
        valid=played_valid.only(kept_valid.tasks) if kept_valid else ValidData(),
        sampler=sampler,
        total_steps=config.train.total_steps(len(tasks)),
        too_long=kept.left_out,
        tools=tools,
        foreign_tags=foreign,
        data=data,
        model=model_sha256(resolved),
        prompt=prompt_record(components.step, config, tools, tasks[0]),
    )


def _within_difficulty(data: DataConfig, tasks: list[Task]) -> list[Task]:
    column = Columns.of(data.columns).difficulty
    return tasks if column is None or not data.difficulty else leave_out_by_difficulty(tasks, column, data.difficulty)


def make_sampler(config: Config, tasks: Sequence[Task]) -> Sampler:
    """The order in which a run trains on these tasks. Raises `ConfigErrors`."""
    data, train = config.data, config.train
    column = Columns.of(data.columns).difficulty if data.order is Order.CURRICULUM else None
    return Sampler(
        len(tasks),
        train.tasks_drawn,
        config.run.seed,
        data.order is not Order.FILE,
        sources=[task.data_source for task in tasks],
        weights=data.weights,
        difficulty=None if column is None else [difficulty_of(task, column) for task in tasks],
        key="train.tasks_per_step" if train.budget_tasks is None else "train.budget_tasks",
    )


def _record(tasks: TaskSet, kept: Filtered, played: Sequence[Task]) -> DataRecord:
    return DataRecord(
        files=tasks.files,
        fingerprint=fingerprint(played),
        tasks=len(tasks.tasks),
        skipped=tasks.skipped,
        repaired=tasks.repaired,
        too_long=kept.left_out,
        by_difficulty=len(kept.tasks) - len(played),
    )


def prompt_counter(encoder: Encoder, prompt: Callable[[Task], Prompt]) -> Callable[[Task], int]:
    """Tokens of a task's prompt as a rollout would begin with it."""

    def count(task: Task) -> int:
        try:
            task_prompt = prompt(task)
            return len(encoder.prompt(task_prompt.messages, task_prompt.tools))
        except ConfigError as error:  # the chat template may refuse an order of roles
            raise ConfigError(f"data: task {task.id!r}: {error}") from error

    return count
