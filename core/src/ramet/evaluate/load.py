"""The tasks of a benchmark that are measured: checked, and with a limit an even share of every data source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from ramet.config.schema import BenchmarkConfig
from ramet.errors import ConfigError, RametError
from ramet.plugin_code import failed, named
from ramet.plugins import origin
from ramet.types import Benchmark, Task

READ = 100_000  # tasks that are looked at for an even share; benchmarks that make tasks up have more than anybody needs
SHOWN = 3


def load_benchmark(name: str, benchmark: Benchmark, chosen: BenchmarkConfig) -> list[Task]:
    """Raises `ConfigError` for missing data, no task, and ids that are not unique; `PluginError` for a benchmark that
    fails in another way.
    """
    who = f"benchmark {name!r} ({origin(benchmark)})"
    try:
        if chosen.limit is None:
            tasks = list(benchmark.load(chosen.split, None))
        else:
            tasks = even_share(list(islice(benchmark.load(chosen.split, None), max(READ, chosen.limit))), chosen.limit)
    except ConfigError as error:
        raise named(error, who, f"benchmarks.{name}") from error
    except RametError:
        raise
    except Exception as error:
        raise failed(error, who, " in load") from error
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


def even_share(tasks: Sequence[Task], limit: int) -> list[Task]:
    """`limit` tasks in their order: the first of each data source, as many of one as of another while it has them."""
    counts = Counter(task.data_source for task in tasks)
    share = dict.fromkeys(counts, 0)
    left = min(limit, len(tasks))
    while left:
        open_sources = [source for source in share if share[source] < counts[source]]
        each = max(1, left // len(open_sources))
        for source in open_sources:
            more = min(each, counts[source] - share[source], left)
            share[source] += more
            left -= more
    chosen = []
    for task in tasks:
        if share[task.data_source]:
            share[task.data_source] -= 1
            chosen.append(task)
    return chosen
