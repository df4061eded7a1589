from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count

import pytest

from ramet.config.schema import BenchmarkConfig
from ramet.errors import ConfigError, PluginError
from ramet.evaluate.evaluation import load_benchmark
from ramet.types import BenchmarkInfo, Rollout, Task, user_prompt


def task(id: str, source: str = "") -> Task:
    return Task(id=id, prompt=user_prompt("?"), answer=("a",), data_source=source)


class Own:
    info = BenchmarkInfo(description="own", splits=("test",), metrics=("accuracy",), source="own", licence="MIT")

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.tasks = tasks

    def load(self, split: str, limit: int | None) -> Iterator[Task]:
        yield from self.tasks

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return {"accuracy": 1.0}


def test_a_benchmark_without_end_is_cut() -> None:
    endless = Own(task(str(i)) for i in count())
    assert [one.id for one in load_benchmark("own", endless, BenchmarkConfig(limit=3))] == ["0", "1", "2"]


def test_ids_that_are_not_unique_are_refused() -> None:
    with pytest.raises(ConfigError) as caught:
        load_benchmark("own", Own([task("x"), task("y"), task("x"), task("x")]), BenchmarkConfig())
    assert str(caught.value) == (
        "benchmarks.own: ids of tasks must be unique in a split, and 'x' (3 times) are of several tasks: their "
        "rollouts would have the same seeds and results"
    )


def test_a_split_without_tasks_and_a_benchmark_that_breaks_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        load_benchmark("own", Own([]), BenchmarkConfig())
    assert str(caught.value) == "benchmarks.own: split 'test' holds no task"

    def broken() -> Iterator[Task]:
        yield task("x")
        raise KeyError("question")

    with pytest.raises(PluginError, match=r"benchmark 'own' .* in load"):
        load_benchmark("own", Own(broken()), BenchmarkConfig())
