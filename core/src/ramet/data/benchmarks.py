"""Benchmarks as data: `benchmark:NAME/SPLIT` among the files of `data.train` and `data.valid`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ramet.errors import ConfigError, RametError
from ramet.types import Task

if TYPE_CHECKING:
    from ramet.types import Benchmark

PREFIX = "benchmark:"
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


def read_benchmark(source: str, build: Build, limit: int | None) -> tuple[str, list[Task]]:
    """Name and the first `limit` tasks. Raises `ConfigError` that begins with the source."""
    name, split = benchmark_of(source)
    try:
        benchmark = build(name)
        if split not in benchmark.info.splits:
            allowed = ", ".join(benchmark.info.splits)
            raise ConfigError(f"benchmark {name!r} has no split {split!r}; allowed: {allowed}")
        tasks = list(islice(benchmark.load(split, limit), limit))
    except RametError as error:
        raise ConfigError(f"{source}: {error}") from error
    if not tasks:
        raise ConfigError(f"{source}: holds no task")
    return name, tasks
