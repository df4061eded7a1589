"""Benchmarks: tasks with ids, gold answers and a metric (hook 7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ramet.types.rollout import Rollout
from ramet.types.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkInfo:
    """Information for readers of a result: the benchmark, and how its authors measure it.

    All of it takes effect in `ramet eval` and in validations of `ramet train`, unless `benchmarks.NAME.…` or
    `evaluate.…` says otherwise.
    """

    description: str
    splits: tuple[str, ...]
    metrics: tuple[str, ...]  # the first is the main one; higher is better, in [0, 1]
    source: str  # where the data comes from
    licence: str
    tools: tuple[str, ...] = ()  # that its tasks may use, of those that are configured; empty: all
    judged: bool = False  # a judge model is asked, which may fail: scores may be None
    limits: Mapping[str, int] = field(default_factory=dict)  # calls of a rollout: by tool, or "max_tool_calls" of all
    sampling: Mapping[str, float] = field(default_factory=dict)  # temperature, top_p, top_k, min_p, repetition_penalty
    prompt: str | None = None  # a template of the user's message, with {question}
    system_prompt: str | None = None  # instead of the rollout step's
    n_tasks: int | None = None  # of the split `test`, as it was published; None: it depends on options
    contamination: str = ""  # known copies of its tasks in training data, and other reasons for caution


class Benchmark(Protocol):
    """Hook 7. Ids unique and stable over loads; the gold answer scores the maximum.

    A run has one instance for each name: it may load several splits, one for training and one for validation, and then
    scores tasks of both. Optional: `async def start(self, services: Services) -> None` before the first score, and
    `async def aclose(self) -> None` after the last.
    """

    info: BenchmarkInfo

    def load(self, split: str, limit: int | None) -> Iterable[Task]:
        """Tasks in a fixed order. Raises `ConfigError` for an unknown split or missing data, the latter `from` a
        `FileNotFoundError`, by which `ramet benchmarks validate` distinguishes missing data from wrong data.
        """
        ...

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        """One value per metric of `info`. None: not judged."""
        ...
