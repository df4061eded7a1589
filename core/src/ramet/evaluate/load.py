"""The tasks of a benchmark that are measured: checked, and with a limit an even share of every data source."""

from __future__ import annotations

from collections import Counter

from ramet.config.schema import BenchmarkConfig
from ramet.data.benchmarks import first_tasks
from ramet.errors import ConfigError, PluginError
from ramet.instance_keys import instance_of
from ramet.output_checks import tasks_problem
from ramet.plugin_code import boundary, defined_at
from ramet.plugins import origin
from ramet.types import Benchmark, Task

SHOWN = 3


def load_benchmark(name: str, benchmark: Benchmark, chosen: BenchmarkConfig) -> list[Task]:
    """Raises `ConfigError` for missing data, no task, and ids that are not unique; `PluginError` for a benchmark that
    fails in another way.
    """
    who = f"benchmark {name!r} ({origin(benchmark)})"
    key = f"benchmarks.{name}"
    with boundary(who, key, on=" in load"), instance_of(f"benchmarks.{chosen.use or name}", key):
        if chosen.limit is None:
            tasks = list(benchmark.load(chosen.split, None))
        else:
            tasks = first_tasks(benchmark, chosen.split, chosen.limit)
    if problem := tasks_problem(tasks):
        raise PluginError(f"{who}: {problem}{defined_at(benchmark, 'load')}")
    if not tasks:
        raise ConfigError(f"benchmarks.{name}: split {chosen.split!r} holds no task")
    twice = [f"{id!r} ({n} times)" for id, n in Counter(task.id for task in tasks).items() if n > 1]
    if twice:
        more = f" and {len(twice) - SHOWN} more" if len(twice) > SHOWN else ""
        raise ConfigError(
            f"benchmarks.{name}: ids of tasks must be unique in a split, and {', '.join(twice[:SHOWN])}{more} are of "
            "several tasks: their rollouts would have the same seeds and results"
        )
    return tasks
