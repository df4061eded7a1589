"""`inspect`: the samples of an inspect_ai task as a benchmark."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from typing import Any

from ramet import BenchmarkInfo, ConfigError, Message, Rollout, Task
from ramet_inspect.config import InspectBenchmarkConfig
from ramet_inspect.process import samples_of

NAME = "benchmarks.inspect"
SAMPLE = "inspect_sample"  # metadata of a task: the sample's id
SCORE = "score"


class InspectBenchmark:
    """`Benchmark`. The agent `inspect` runs and scores the samples; the metric is its reward."""

    def __init__(self, config: InspectBenchmarkConfig) -> None:
        config.check(NAME)
        self.config = config
        self.info = BenchmarkInfo(
            description=f"the inspect_ai task {config.task}",
            splits=("train", "test"),
            metrics=(SCORE,),
            source=config.task,
            licence="the task's licence",
        )

    def load(self, split: str, limit: int | None) -> Iterator[Task]:
        """Raises `ConfigError` for a task that cannot be loaded."""
        if split not in self.info.splits:
            raise ConfigError(f"{NAME} has no split {split!r}; allowed: {', '.join(self.info.splits)}")
        samples, n_train = self._samples, self.config.n_train
        if n_train >= len(samples) or (split == "train" and not n_train):
            raise ConfigError(
                f"{NAME}.params.n_train={n_train}: must be at least {'1' if split == 'train' else '0'} and under "
                f"{len(samples)}, the number of samples of {self.config.task}; the others are the split test"
            )
        train = set(random.Random(self.config.seed).sample(range(len(samples)), n_train))
        chosen = (sample for number, sample in enumerate(samples) if (number in train) == (split == "train"))
        return map(_task, islice(chosen, limit))

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        """Return the reward that the agent found; 0 where the sample failed."""
        info = rollout.infos[-1].get("inspect") if rollout.infos else None
        if info is None:
            raise ConfigError(f"{NAME} needs rollout_step=inspect: the task's own scorers score its samples")
        score = float(info.get(SCORE, 0.0))
        if not 0 <= score <= 1:
            raise ConfigError(
                f"{NAME}: sample {rollout.task.id!r} has the score {score:g}; a metric is a number in [0, 1]: choose "
                "another score with rollout_step.params.scorer"
            )
        return {SCORE: score}

    @cached_property
    def _samples(self) -> list[dict[str, Any]]:
        return samples_of(self.config, NAME)


def _task(sample: Mapping[str, Any]) -> Task:
    return Task(
        id=sample["id"],
        prompt=tuple(Message(role=role, content=text) for role, text in sample["messages"]),
        answer=tuple(target for target in sample["target"] if target),
        data_source="inspect",
        metadata={SAMPLE: sample["id"]},
    )
