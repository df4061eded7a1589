"""`files`: questions in your own files, scored by installed rewards.

`benchmarks.capitals.use=files benchmarks.capitals.params.paths=[capitals.jsonl]
benchmarks.capitals.params.metrics={em: qa_em}` is a benchmark without a line of code.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from ramet import BenchmarkInfo, ConfigError, Reward, Rollout, Services, Task
from ramet_benchmarks.config import FilesConfig
from ramet_benchmarks.metrics import JUDGE, Metrics, chosen_reward
from ramet_benchmarks.rows import RowForm, Values, file_rows, tasks_of

NAME = "files"


class FilesBenchmark:
    """Questions of files, which are one split, `test`.

    The ids begin with the file's stem, which is the data source too.
    """

    def __init__(self, config: FilesConfig) -> None:
        _check(config)
        self.config = config
        self.metrics = Metrics(_rewards(config), config.judge, NAME)
        self.info = BenchmarkInfo(
            description=f"questions of {', '.join(config.paths)}",
            splits=("test",),
            metrics=self.metrics.names,
            source=", ".join(config.paths),
            licence="the files' licence",
            tools=tuple(config.tools),
            judged=self.metrics.judged,
            limits=dict(config.limits),
            prompt=config.prompt,
        )

    def load(self, split: str, limit: int | None) -> Iterator[Task]:
        if split not in self.info.splits:
            raise ConfigError(f"benchmarks.{NAME} has no split {split!r}; allowed: {', '.join(self.info.splits)}")
        _check_files(self.config)
        return itertools.islice(itertools.chain.from_iterable(map(self._tasks, self.config.paths)), limit)

    async def start(self, services: Services) -> None:
        await self.metrics.start(services)

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        scores = await self.metrics.of(rollout)
        for metric, value in scores.items():
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(
                    f"params.metrics.{metric} is the reward {self.config.metrics.get(metric)!r}, which gave {value:g} "
                    f"for task {rollout.task.id!r}; a metric is a number in [0, 1]: choose the reward's options with "
                    f"params.options={{{metric}: {{…}}}}, or another reward"
                )
        return scores

    async def aclose(self) -> None:
        await self.metrics.aclose()

    def _tasks(self, name: str) -> Iterator[Task]:
        path, c = Path(name).expanduser(), self.config
        form = RowForm(
            question=(c.question,),
            answer=(c.answer,),
            id=() if c.id is None else (c.id,),
            metadata=None,
            read=self._with_id,
        )
        return tasks_of(file_rows(path), form, path.stem, path.stem, check=self.metrics.check_task)

    def _with_id(self, row: Values) -> Values:
        """Raise `ValueError` for a row without the id that the file should have."""
        column = self.config.id
        if column is not None and row.get(column) is None:
            raise ValueError(f"no key {column!r} (or null); found {', '.join(row) or 'nothing'}")
        return row


def _check(config: FilesConfig) -> None:
    problems = []
    if not config.paths:
        problems.append("paths is empty; name at least one file of JSON lines")
    stems = Counter(Path(path).stem for path in config.paths)
    problems += [
        f"paths has {n} files named {stem!r}; ids begin with this name, so it must be another in each file"
        for stem, n in stems.items()
        if n > 1
    ]
    if not config.metrics and not config.judge.ask:
        problems.append("metrics is empty; name at least one with its reward, as in {em: qa_em}")
    if JUDGE in config.metrics:
        problems.append(f"metrics has {JUDGE!r}, which is the metric of judge.ask; choose another name")
    problems += [
        f"metrics.{metric} is {reward}, which asks a server: set judge.ask=true and judge.server, which makes the "
        f"metric {JUDGE!r} of it; then what it cannot judge is counted, and a replay asks no judge"
        for metric, reward in config.metrics.items()
        if reward == "llm_judge"
    ]
    problems += [f"options has {name!r}, which is not a metric; metrics: {', '.join(config.metrics) or 'none'}"
                 for name in config.options if name not in config.metrics]  # fmt: skip
    problems += [f"limits.{tool}={n}: must be at least 0" for tool, n in config.limits.items() if n < 0]
    if config.prompt is not None and "{question}" not in config.prompt:
        problems.append(f"prompt is {config.prompt!r}; allowed: a text with {{question}}")
    if problems:
        raise ConfigError("\n".join(f"benchmarks.{NAME}.params.{problem}" for problem in problems))


def _check_files(config: FilesConfig) -> None:
    """Raise `ConfigError` for files that do not exist, and for columns that no row of a file has."""
    where = f"benchmarks.{NAME}.params"
    lacking = [path for path in config.paths if not Path(path).expanduser().is_file()]
    if lacking:
        lines = [f"{where}.paths: no file {path!r} (working directory {Path.cwd()})" for path in lacking]
        raise ConfigError("\n".join(lines)) from FileNotFoundError(lacking[0])
    columns = {"question": config.question, "answer": config.answer, "id": config.id}
    problems = []
    for path in config.paths:
        for option, column in columns.items():
            keys = None if column is None else _keys_without(Path(path).expanduser(), column)
            if keys:
                problems.append(f"{where}.{option} is {column!r}, which no row of {path} has; found {', '.join(keys)}")
    if problems:
        raise ConfigError("\n".join(problems))


def _keys_without(path: Path, column: str) -> list[str]:
    """Return the keys of a file's rows if none has `column`; empty if one has it, or the file cannot be read."""
    keys: dict[str, None] = {}
    try:
        for _, _, row in file_rows(path):
            if column in row:
                return []
            keys |= dict.fromkeys(row)
    except ConfigError:  # is raised where the tasks are read, with its row
        return []
    return list(keys)


def _rewards(config: FilesConfig) -> dict[str, Reward]:
    where = f"benchmarks.{NAME}.params.metrics."
    return {
        metric: chosen_reward(name, config.options.get(metric) or {}, where + metric)
        for metric, name in config.metrics.items()
    }
