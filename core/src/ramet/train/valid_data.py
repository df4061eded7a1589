"""The validation data of a training run: tasks of files, and tasks of benchmarks as `ramet eval` would measure them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ramet.components.build import Components
from ramet.config.schema import BenchmarkConfig, Config, EvaluateConfig
from ramet.data.benchmarks import is_benchmark
from ramet.data.layout import Columns
from ramet.data.tasks import CheckTask, TaskSet, fingerprint, load_tasks
from ramet.errors import raise_all
from ramet.evaluate.rules import BenchmarkRules, rule_problems, rules_of, warn_of_missing_tools
from ramet.rollout.scoring import Scorer
from ramet.types import Benchmark, Task

REWARD = "valid/reward"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidData:
    """Tasks in order, and by name the benchmarks that some of them come from, with the settings of each."""

    tasks: Sequence[Task] = ()
    origins: Mapping[str, str] = field(default_factory=dict)  # id of a task -> name of its benchmark
    benchmarks: Mapping[str, Benchmark] = field(default_factory=dict)
    rules: Mapping[str, BenchmarkRules] = field(default_factory=dict)

    def of(self, benchmark: str | None) -> list[Task]:
        """Tasks of a benchmark; None: of files."""
        return [task for task in self.tasks if self.origins.get(task.id) == benchmark]

    def only(self, kept: Sequence[Task]) -> ValidData:
        """Return the data with only these tasks."""
        names = {self.origins.get(task.id) for task in kept}
        return replace(
            self,
            tasks=kept,
            benchmarks={name: benchmark for name, benchmark in self.benchmarks.items() if name in names},
        )

    def metrics(self, scorer: Scorer, k: int) -> list[str]:
        """Every metric that a validation can report where higher is better."""
        rewarded = [task for task in self.tasks if scorer.applies_to(task)]
        sources = sorted({task.data_source for task in rewarded if task.data_source})
        names = [REWARD, *(f"{REWARD}/{source}" for source in sources)] if rewarded else []
        for name, benchmark in sorted(self.benchmarks.items()):
            for metric in benchmark.info.metrics:
                names.append(f"valid/{name}/{metric}")
                names += [f"valid/{name}/{metric}/pass@{k}"] if k > 1 else []
        return names


def load_valid(
    config: Config, components: Components, tools: Sequence[str] | None, check: CheckTask | None
) -> tuple[TaskSet, ValidData]:
    """The data of `data.valid`, as a set and with the benchmarks. `check`: of tasks that rewards judge. Raises
    `ConfigErrors`.

    `tools`: names of the configured tools and tool sets; None: not known, so the benchmarks' rules are neither checked
    nor applied.
    """
    data = config.data
    task_set = load_tasks(
        data.valid,
        Columns.of({**data.columns, "difficulty": None}),  # only of training
        limit=data.limits.get("valid"),
        on_bad_row=data.on_bad_row,
        build=components.benchmark,
        shares={name: settings.limit for name, settings in config.benchmarks.items() if settings.limit is not None},
        check=check,
        check_benchmarks=False,
    )
    raise_all(_problems(config))
    names = dict.fromkeys(name for task in task_set.tasks if (name := task_set.benchmarks.get(task.id)) is not None)
    benchmarks = {name: components.benchmark(name) for name in names}
    rules = {} if tools is None else _rules(config, benchmarks, tools)
    tasks = [_applied(rules, task_set.benchmarks.get(task.id), task) for task in task_set.tasks]
    played = replace(task_set, tasks=tasks, fingerprint=fingerprint(tasks))
    return played, ValidData(tasks=tasks, origins=task_set.benchmarks, benchmarks=benchmarks, rules=rules)


def _rules(config: Config, benchmarks: Mapping[str, Benchmark], tools: Sequence[str]) -> dict[str, BenchmarkRules]:
    sections = {name: config.benchmarks.get(name, BenchmarkConfig()) for name in benchmarks}
    settings = sampling_settings(config)
    raise_all(
        [
            p
            for name, benchmark in benchmarks.items()
            for p in rule_problems(name, benchmark.info, sections[name], tools)
        ]
    )
    for name, benchmark in benchmarks.items():
        warn_of_missing_tools(name, benchmark.info, sections[name], tools)
    return {name: rules_of(benchmark.info, sections[name], settings, tools) for name, benchmark in benchmarks.items()}


def _applied(rules: Mapping[str, BenchmarkRules], benchmark: str | None, task: Task) -> Task:
    return task if benchmark is None or benchmark not in rules else rules[benchmark].applied(task)


def sampling_settings(config: Config) -> EvaluateConfig:
    """`evaluate`, with what `train.eval_…` says instead for validations."""
    train, evaluate = config.train, config.evaluate
    return replace(evaluate, k=train.eval_k, sampling={**evaluate.sampling, **train.eval_sampling})


def _problems(config: Config) -> Iterator[str]:
    """A validation of files is greedy by default."""
    train, files = config.train, [source for source in config.data.valid if not is_benchmark(source)]
    if train.eval_k > 1 and "temperature" not in train.eval_sampling and files:
        yield (
            f"train.eval_k={train.eval_k}: needs train.eval_sampling.temperature over 0 for the tasks of "
            f"{', '.join(files)}, since all rollouts of a task would be the same"
        )
