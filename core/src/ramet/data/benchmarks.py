"""Benchmarks as data: `benchmark:NAME/SPLIT` among the files of `data.train` and `data.valid`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ramet.errors import ConfigError, PluginError, RametError
from ramet.plugins import origin
from ramet.plugins.output_checks import tasks_problem
from ramet.plugins.plugin_code import defined_at, failed
from ramet.types import Task

if TYPE_CHECKING:
    from ramet.types import Benchmark

PREFIX = "benchmark:"
READ = 100_000  # tasks that are looked at for an even share; benchmarks that make tasks up have more than anybody needs
Build = Callable[[str], "Benchmark"]  # by name; raises `ConfigError`


def is_benchmark(source: str) -> bool:
    return source.startswith(PREFIX)


def benchmark_of(source: str) -> tuple[str, str]:
    """Name and split. Raises `ConfigError`."""
    name, slash, split = source.removeprefix(PREFIX).partition("/")
    if not (name and slash and split):
        raise ConfigError(f"{source}: write benchmark:NAME/SPLIT, as in benchmark:gsm8k/train")
    return name, split


def benchmark_names(sources: Sequence[str]) -> set[str]:
    """The benchmarks that these sources name, as far as they are well written."""
    return {source.removeprefix(PREFIX).partition("/")[0] for source in sources if is_benchmark(source)}


def read_benchmark(
    source: str, build: Build, limit: int | None, shares: Mapping[str, int] | None = None
) -> tuple[str, list[Task]]:
    """Name and the first `limit` tasks. Raises `ConfigError` that begins with the source.

    `shares`: of these benchmarks only so many tasks, as `first_tasks` takes them.
    """
    name, split = benchmark_of(source)
    try:
        benchmark = build(name)
        if split not in benchmark.info.splits:
            allowed = ", ".join(benchmark.info.splits)
            raise ConfigError(f"benchmark {name!r} has no split {split!r}; allowed: {allowed}")
        share = (shares or {}).get(name)
        if share is None:
            tasks = list(islice(benchmark.load(split, limit), limit))
        else:
            tasks = first_tasks(benchmark, split, share)[:limit]
    except RametError as error:
        raise ConfigError(f"{source}: {error}") from error
    except Exception as error:
        raise failed(error, f"{source}: benchmark {name!r} ({origin(benchmark)})", " in load") from error
    if problem := tasks_problem(tasks):
        who = f"{source}: benchmark {name!r} ({origin(benchmark)})"
        raise PluginError(f"{who}: {problem}{defined_at(benchmark, 'load')}")
    if not tasks:
        raise ConfigError(f"{source}: has no tasks")
    return name, tasks


def first_tasks(benchmark: Benchmark, split: str, limit: int) -> list[Task]:
    """`limit` tasks, an even share of each data source."""
    return even_share(list(islice(benchmark.load(split, None), max(READ, limit))), limit)


def even_share(tasks: Sequence[Task], limit: int) -> list[Task]:
    """`limit` tasks in their order: the first of each data source, as many of one as of another while it has them."""
    counts = Counter(task.data_source for task in tasks)
    share = dict.fromkeys(counts, 0)
    n_left = min(limit, len(tasks))
    while n_left:
        open_sources = [source for source in share if share[source] < counts[source]]
        each = max(1, n_left // len(open_sources))
        for source in open_sources:
            more = min(each, counts[source] - share[source], n_left)
            share[source] += more
            n_left -= more
    kept = []
    for task in tasks:
        if share[task.data_source]:
            share[task.data_source] -= 1
            kept.append(task)
    return kept
