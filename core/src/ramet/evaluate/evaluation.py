"""`ramet eval`: benchmarks through the rollout code that trains, into one results file. Resumes task by task."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ramet.cluster.check import check_cluster
from ramet.cluster.interfaces import Rollouts
from ramet.cluster.launch import open_rollouts
from ramet.components.build import Components
from ramet.components.checks import check_components
from ramet.components.engines import check_engine, loads_weights
from ramet.components.prompts import check_prompts, task_prompts, warn_of_foreign_tags
from ramet.components.services import RunServices
from ramet.components.toolbox import ToolNames, tool_names
from ramet.config.checks import check
from ramet.config.resolved import Resolved
from ramet.config.schema import BenchmarkConfig, ChatMarkup, Config
from ramet.data.benchmarks import first_tasks
from ramet.data.filter import warn_of_chat_markup
from ramet.data.tasks import fingerprint
from ramet.errors import ConfigError, MissingHere, PluginError, collected, raise_all, set_aside_missing
from ramet.evaluate.files import read_summary
from ramet.evaluate.header import SELECTION, Header, plain
from ramet.evaluate.measure import judge_again, measure, started
from ramet.evaluate.partial import PartialResults, is_finished
from ramet.evaluate.results import Results, check_complete
from ramet.evaluate.rules import BenchmarkRules, rule_problems, rules_of, split_problem, warn_of_missing_tools
from ramet.evaluate.tables import print_tables, results_cells
from ramet.event_loop import run_async
from ramet.models.check import check_model
from ramet.models.loading import build_encoder
from ramet.models.torch_setup import check_torch, set_up_torch
from ramet.plugins import origin
from ramet.plugins.instance_keys import instance_of
from ramet.plugins.output_checks import tasks_problem
from ramet.plugins.plugin_code import boundary, defined_at
from ramet.rollout.prompts import markup_in
from ramet.runs.hub_inputs import shown_model
from ramet.runs.manifest import make_manifest, model_sha256
from ramet.runs.own_files import file_rights
from ramet.runs.run_dir import RunDir
from ramet.runs.selection import read_selection
from ramet.runs.stopped import StopListener, resumable
from ramet.tracking.live import Part, live_line
from ramet.tracking.rollout_parts import TokenRate, rollout_parts
from ramet.tracking.run_log import RunLog, recording
from ramet.tracking.trackers import CONSOLE, check_trackers, open_trackers
from ramet.types import Benchmark, Task

logger = logging.getLogger(__name__)
MASKED_LIMIT = 0.05  # where `rollout.max_masked_share` is null
SHOWN = 3  # ids of tasks in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateResult:
    """A finished evaluation."""

    run: Path  # its directory
    file: Path  # the results file
    scores: Mapping[str, Mapping[str, float | None]]  # benchmark -> metric -> mean over tasks; None: nothing judged


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedEvaluation:
    """The checked parts of an evaluation."""

    components: Components
    benchmarks: Mapping[str, Benchmark]  # by name, as are their tasks
    tasks: Mapping[str, list[Task]]
    rules: Mapping[str, BenchmarkRules]
    tools: ToolNames
    missing: Sequence[MissingHere] = ()  # of a plan for another machine: what this one lacks

    def count(self, partial: PartialResults) -> tuple[int, int]:
        """Count rollouts that have no score yet, and how many of them are to be run, not only judged."""
        keys = [(name, task.id) for name, tasks in self.tasks.items() for task in tasks]
        return sum(len(partial.missing(*key)) for key in keys), sum(len(partial.to_play(*key)) for key in keys)


def run(resolved: Resolved) -> EvaluateResult:
    """The job. Raises `ConfigErrors` before anything is written if something is wrong, and `Stopped` if a signal ended
    the run.
    """
    with StopListener().listening(), recording() as log:
        return _run(resolved, log)


def _run(resolved: Resolved, log: RunLog) -> EvaluateResult:
    config = resolved.config
    prepared = prepare(resolved)
    set_up_torch(config.run)
    model = model_sha256(resolved)
    _warn_of_chat_markup(config, prepared)
    with file_rights(private=config.run.private), RunDir.open(config.run.root, config.run.name) as run_dir:
        manifest = make_manifest(resolved, model=model)
        raise_all(run_dir.check_resume(resolved, manifest))
        out = Path(config.run.out) if config.run.out else run_dir.path / "results.json"
        header = Header(
            model=shown_model(resolved),
            k=config.evaluate.k,
            rules={name: plain(asdict(rules)) for name, rules in prepared.rules.items()},
            settings={
                "config": resolved.text,
                "model_sha256": model,
                "tasks_sha256": {
                    name: fingerprint(benchmark_tasks) for name, benchmark_tasks in prepared.tasks.items()
                },
                **_selection(config),
            },
            benchmarks={name: benchmark.info for name, benchmark in prepared.benchmarks.items()},
            versions=manifest.versions,
            plugins=[asdict(plugin) for plugin in manifest.plugins],
        )
        allow = config.run.allow_config_change
        if is_finished(out, header, allow=allow):
            logger.info("this evaluation is finished: results in %s", out)
            return EvaluateResult(run=run_dir.path, file=out, scores=_scores(read_summary(out)))
        with resumable(resolved, run_dir.path.name):
            partial = PartialResults(out, header, allow=allow)
            run_dir.record(resolved, manifest)
            log.write_to(run_dir.log)
            _announce(config, prepared, out)
            missing, to_play = prepared.count(partial)
            total = config.evaluate.k * sum(map(len, prepared.tasks.values()))
            if missing < total:
                text = "%s: %d of %d rollouts are there, %d are run, %d are judged again"
                logger.info(text, partial.path, total - missing, total, to_play, missing - to_play)
            with open_trackers(_without_console(config), run_dir.path, total_steps=0) as tracker:
                if missing:
                    run_async(_measure(config, prepared, partial, folder=run_dir.services))
                limit = config.rollout.max_masked_share
                check_complete(partial.results(), MASKED_LIMIT if limit is None else limit, partial.path)
                results = partial.finish()
                tracker.log(0, results.metrics())
        _show(results, out)
        return EvaluateResult(run=run_dir.path, file=out, scores=_scores(results.body()))


def _selection(config: Config) -> dict[str, Any]:
    """How a validation chose the model, and which of the benchmarks' splits it chose on; nothing where none did."""
    selection = read_selection(Path(config.model.path))
    if selection is None:
        return {}
    on = [
        name for name, settings in config.benchmarks.items() if selection.chose_on(settings.use or name, settings.split)
    ]
    return {SELECTION: {**plain(asdict(selection)), "benchmarks": on}}


def _without_console(config: Config) -> Config:
    """The table of the results is on the terminal."""
    return replace(config, trackers=[name for name in config.trackers if name != CONSOLE])


def _warn_of_chat_markup(config: Config, prepared: PreparedEvaluation) -> None:
    if config.data.chat_markup is ChatMarkup.KEEP:
        encoder, prompt = build_encoder(config), task_prompts(prepared.components.step, config, prepared.tools)
        for name, benchmark_tasks in prepared.tasks.items():
            warn_of_chat_markup(benchmark_tasks, lambda task: markup_in(prompt(task), encoder), f"benchmarks.{name}")


def _scores(body: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    return {
        result["name"]: {m["metric"]: m["avg"].get("mean") for m in result["metrics"]} for result in body["results"]
    }


def prepare(resolved: Resolved, *, elsewhere: bool = False) -> PreparedEvaluation:
    """Do all checks, reported together in `ConfigErrors`, and load the benchmarks' tasks.

    `elsewhere`: a plan for GPUs of another machine, for which this one may lack weights, tokenizer and packages.
    """
    config = resolved.config
    components = Components(config)
    problems = [
        *check(resolved, "eval"),
        *check_model(config.model, weights=loads_weights(config)),
        *check_torch(config.run, config.model),
        *check_engine(config),
        *check_cluster(config),
        *check_trackers(config, resolved.set_by_user),
        *check_components(components, config, training=False),
    ]
    missing = set_aside_missing(problems) if elsewhere else []
    benchmarks: dict[str, Benchmark] = {}
    tasks: dict[str, list[Task]] = {}
    rules: dict[str, BenchmarkRules] = {}
    tools = ToolNames()
    with collected(problems):
        tools = tool_names(config)
        problems += [] if problems else check_prompts(components.step, config, tools)
    with collected(problems):
        benchmarks = {name: components.benchmark(name) for name in config.benchmarks}
    for name, benchmark in benchmarks.items():
        info, settings = benchmark.info, config.benchmarks[name]
        problems += rule_problems(name, info, settings, tools.all)
        no_split = split_problem(name, info, settings)
        rules[name] = rules_of(info, settings, config.evaluate, tools.all)
        try:
            if no_split is None:
                tasks[name] = [rules[name].applied(task) for task in load_benchmark(name, benchmark, settings)]
        except ConfigError as error:
            problems.append(str(error))
        problems += [] if no_split is None else [no_split]
        problems += [] if problems else tools.unanswered(tasks[name])
    raise_all(dict.fromkeys(problems))
    for name, benchmark in benchmarks.items():
        warn_of_missing_tools(name, benchmark.info, config.benchmarks[name], tools.all)
    warn_of_foreign_tags(
        components.step, config, [task for benchmark_tasks in tasks.values() for task in benchmark_tasks], tools
    )
    return PreparedEvaluation(
        components=components, benchmarks=benchmarks, tasks=tasks, rules=rules, tools=tools, missing=missing
    )


def load_benchmark(name: str, benchmark: Benchmark, settings: BenchmarkConfig) -> list[Task]:
    """The tasks that are measured: checked, and with a limit an even share of every data source.

    Raises `ConfigError` for missing data, no task, and ids that are not unique; `PluginError` for a benchmark that
    fails in another way.
    """
    who = f"benchmark {name!r} ({origin(benchmark)})"
    key = f"benchmarks.{name}"
    with boundary(who, key, on=" in load"), instance_of(f"benchmarks.{settings.use or name}", key):
        if settings.limit is None:
            tasks = list(benchmark.load(settings.split, None))
        else:
            tasks = first_tasks(benchmark, settings.split, settings.limit)
    if problem := tasks_problem(tasks):
        raise PluginError(f"{who}: {problem}{defined_at(benchmark, 'load')}")
    if not tasks:
        raise ConfigError(f"benchmarks.{name}: split {settings.split!r} holds no task")
    twice = [f"{id!r} ({n} times)" for id, n in Counter(task.id for task in tasks).items() if n > 1]
    if twice:
        more = f" and {len(twice) - SHOWN} more" if len(twice) > SHOWN else ""
        raise ConfigError(
            f"benchmarks.{name}: ids of tasks must be unique in a split, and {', '.join(twice[:SHOWN])}{more} are of "
            "several tasks: their rollouts would have the same seeds and results"
        )
    return tasks


async def _measure(config: Config, prepared: PreparedEvaluation, partial: PartialResults, *, folder: Path) -> None:
    plans = {name: rules.plan(config.evaluate.k) for name, rules in prepared.rules.items()}
    components, tools = prepared.components, prepared.tools
    services = RunServices(folder=folder, seed=config.run.seed)  # only here: all scoring is in this process
    async with started(prepared.benchmarks, services):
        await judge_again(prepared.benchmarks, partial)
        if prepared.count(partial)[1] == 0:
            return
        async with open_rollouts(config, components=components, folder=folder, tools=tools) as rollouts:
            progress = _EvaluationProgress(rollouts)
            with live_line(progress.parts):
                await measure(
                    rollouts, prepared.benchmarks, prepared.tasks, plans=plans, partial=partial, report=progress
                )


class _EvaluationProgress:
    """A line on the screen at every tenth of a benchmark, and what the live line shows."""

    def __init__(self, rollouts: Rollouts) -> None:
        self._rollouts = rollouts
        self._rate = TokenRate()
        self._now = ""

    def parts(self) -> list[Part]:
        return [Part(self._now), *rollout_parts(self._rollouts.progress(), self._rate)]

    def __call__(self, benchmark: str, done: int, total: int) -> None:
        self._now = f"{benchmark} {done}/{total} tasks"
        if done == total or done % max(1, total // 10) == 0:
            logger.info("%s: %d of %d tasks", benchmark, done, total)


def _announce(config: Config, prepared: PreparedEvaluation, out: Path) -> None:
    what = ", ".join(f"{name} ({len(benchmark_tasks)} tasks)" for name, benchmark_tasks in prepared.tasks.items())
    each = "one rollout each" if config.evaluate.k == 1 else f"{config.evaluate.k} rollouts each"
    logger.info("%s: %s, %s, results in %s", config.model.path, what, each, out)


def _show(results: Results, out: Path) -> None:
    print_tables([results_cells(results.body())])
    logger.info("results in %s", out)
