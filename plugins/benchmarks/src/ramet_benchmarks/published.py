"""The common part of the published benchmarks: places of their rows, measurement and scoring.

Tools, call limits and sampling come from the evaluation of ARPO and AEPO (arXiv 2507.19849, 2510.14545), which measured
all benchmarks alike. Metrics come from each benchmark's authors, as far as rules can compute them. Where the authors
ask a model, `judge.ask` does so too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ramet import BenchmarkInfo, ConfigError, Reward, Rollout, Services, Task
from ramet_benchmarks.config import PublishedConfig
from ramet_benchmarks.metrics import Metrics
from ramet_benchmarks.rows import SAMPLES, HubData, Row, RowForm, file_rows, hub_rows, tasks_of

TOOLS = ("python", "search")
LIMITS = {"python": 5, "search": 10}  # calls of a rollout
SAMPLING = {"temperature": 0.6, "top_p": 0.95, "top_k": 20.0, "repetition_penalty": 1.1}
SAMPLE = "sample"  # the split that is in this package


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The facts about one benchmark."""

    name: str
    description: str
    source: str
    licence: str
    n_tasks: int  # of the published form
    contamination: str
    hub: HubData
    form: RowForm = field(default_factory=RowForm)
    folder: str = ""  # of its files among the published ones; empty: its name
    prompt: str | None = None

    @property
    def splits(self) -> tuple[str, ...]:
        return (*self.hub.splits, SAMPLE)


class PublishedBenchmark:
    def __init__(self, about: Published, config: PublishedConfig, rewards: Mapping[str, Reward]) -> None:
        self.about = about
        self.path = config.path
        self.metrics = Metrics(rewards, config.judge, about.name)
        self.info = BenchmarkInfo(
            description=about.description,
            splits=about.splits,
            metrics=self.metrics.names,
            source=about.source,
            licence=about.licence,
            tools=TOOLS,
            judged=self.metrics.judged,
            limits=LIMITS,
            sampling=SAMPLING,
            prompt=about.prompt,
            n_tasks=about.n_tasks,
            contamination=about.contamination,
        )

    def load(self, split: str, limit: int | None) -> Iterator[Task]:
        name = self.about.name
        if split not in self.info.splits:
            raise ConfigError(f"benchmarks.{name} has no split {split!r}; allowed: {', '.join(self.info.splits)}")
        rows, check = self._rows(split), self.metrics.check_task
        tasks = tasks_of(rows, self.about.form, name, f"{name}/{split}", check=check)
        return itertools.islice(tasks, limit)

    async def start(self, services: Services) -> None:
        await self.metrics.start(services)

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        return await self.metrics.of(rollout)

    async def aclose(self) -> None:
        await self.metrics.aclose()

    def _rows(self, split: str) -> Iterator[Row]:
        hub, option = self.about.hub, f"benchmarks.{self.about.name}.params.path"
        if split == SAMPLE:
            return file_rows(SAMPLES / f"{self.about.name}.jsonl")
        if self.path is None:
            return hub_rows(hub, split, option)
        file = self._file(Path(self.path).expanduser(), split)
        if file is None:
            return hub_rows(HubData(name=self.path, splits=hub.splits, subsets=hub.subsets), split, option)
        if not file.is_file():
            raise ConfigError(f"{option}: no file {str(file)!r}") from FileNotFoundError(file)
        return file_rows(file)

    def _file(self, path: Path, split: str) -> Path | None:
        """Return the split's file, in a folder of several benchmarks or of this one.

        None: `path` is a name on the hub.
        """
        if path.is_dir():
            file = path / f"{split}.jsonl"
            return file if file.is_file() else path / (self.about.folder or self.about.name) / file.name
        return path if path.suffix == ".jsonl" or path.is_file() else None
