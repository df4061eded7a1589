"""The check of benchmarks passes a good one and names what is wrong with each broken one."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pytest

from ramet import BenchmarkInfo, ConfigError, Rollout, Task, user_prompt
from ramet.testing import check_benchmark

INFO = BenchmarkInfo(
    description="Sums of two numbers.",
    splits=("test",),
    metrics=("accuracy",),
    source="made here",
    licence="MIT",
)


class Sums:
    info = INFO

    def load(self, split: str, limit: int | None) -> Iterable[Task]:
        if split not in self.info.splits:
            raise ConfigError(f"no split {split!r}; sums has test")
        return itertools.islice(self.tasks(split), limit)

    def tasks(self, split: str) -> Iterator[Task]:
        for i in range(12):
            yield Task(id=f"{split}/{i}", prompt=user_prompt(f"{i} + 2?"), answer=(str(i + 2), f"{i + 2}.0"))

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return {"accuracy": float(rollout.answer is not None and rollout.answer in rollout.task.answer)}


class Judged(Sums):
    info = replace(INFO, judged=True)

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return {"accuracy": None}


class Unstable(Sums):
    count = itertools.count()

    def tasks(self, split: str) -> Iterator[Task]:
        return (replace(task, id=f"{task.id}-{next(self.count)}") for task in super().tasks(split))


class Duplicates(Sums):
    def tasks(self, split: str) -> Iterator[Task]:
        return (replace(task, id=f"{split}/{i // 2}") for i, task in enumerate(super().tasks(split)))


class LimitFromTheEnd(Sums):
    def load(self, split: str, limit: int | None) -> Iterable[Task]:
        tasks = list(super().load(split, None))
        return tasks if limit is None else tasks[-limit:]


class StrictGold(Sums):
    """Accepts only the first of its gold answers."""

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return {"accuracy": float(rollout.answer == rollout.task.answer[0])}


class Generous(Sums):
    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return {"accuracy": 1.0}


class Percent(Sums):
    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return {"accuracy": 100 * float(rollout.answer in rollout.task.answer)}


class OtherMetric(Sums):
    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return {"f1": 1.0}


class CrashesOnEmpty(Sums):
    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return {"accuracy": float(rollout.response.split("<answer>")[1].split("<")[0] in rollout.task.answer)}


class AnySplit(Sums):
    def load(self, split: str, limit: int | None) -> Iterable[Task]:
        return itertools.islice(self.tasks(split), limit)


class NoData(Sums):
    def tasks(self, split: str) -> Iterator[Task]:
        raise ConfigError("no file 'sums.jsonl'; run `make data`")


class Crashes(Sums):
    def tasks(self, split: str) -> Iterator[Task]:
        raise FileNotFoundError("sums.jsonl")


class NoGold(Sums):
    def tasks(self, split: str) -> Iterator[Task]:
        return (replace(task, answer=()) for task in super().tasks(split))


class NoLicence(Sums):
    info = replace(INFO, licence="")


class UnjudgedSilently(Sums):
    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return {"accuracy": None}


class FewWithoutLimit(Sums):
    def load(self, split: str, limit: int | None) -> Iterable[Task]:
        return itertools.islice(super().load(split, None), 3)


@pytest.mark.parametrize("good", [Sums, Judged])
def test_a_good_benchmark_passes(good: type) -> None:
    check_benchmark(good())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Unstable, "two loads differ"),
        (Duplicates, "ids are not unique"),
        (LimitFromTheEnd, "not the first 8"),
        (FewWithoutLimit, "limit=2 gave 3 tasks"),
        (StrictGold, "gold answer '2.0' scores 0.0"),
        (Generous, "an empty reply scores 1.0 in 'accuracy', not 0, the minimum"),
        (Percent, "a number in \\[0, 1\\]"),
        (OtherMetric, "info.metrics names"),
        (CrashesOnEmpty, "score crashed with IndexError"),
        (AnySplit, "unknown split is loaded"),
        (NoData, "^cannot load: split 'test': no file 'sums.jsonl'"),
        (Crashes, "^cannot load: split 'test': crashed with FileNotFoundError"),
        (NoGold, "has no gold answer"),
        (NoLicence, "info.licence is empty"),
        (UnjudgedSilently, "info.judged is False"),
    ],
)
def test_a_broken_benchmark_is_caught(broken: type, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check_benchmark(broken())
    assert re.search(message, str(caught.value))
