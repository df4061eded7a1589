"""`gsm8k`: grade-school word problems (Cobbe et al. 2021, arXiv 2110.14168), scored by equality of numbers.

The gold answer is the number after `####`, without thousands separators.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramet import BenchmarkInfo, ConfigError, Rollout, Task, from_jsonl, user_prompt
from ramet_benchmarks.answers import number
from ramet_benchmarks.config import Gsm8kConfig

SUBSET = "main"  # of the data set on the hub


class Gsm8k:
    info = BenchmarkInfo(
        description="grade-school mathematics word problems; the answer is one number",
        splits=("train", "test"),
        metrics=("accuracy",),
        source="https://github.com/openai/grade-school-math (hub: openai/gsm8k), Cobbe et al. 2021",
        licence="MIT",
    )

    def __init__(self, config: Gsm8kConfig) -> None:
        self.path = config.path

    def load(self, split: str, limit: int | None) -> Iterator[Task]:
        if split not in self.info.splits:
            raise ConfigError(f"benchmarks.gsm8k has no split {split!r}; allowed: {', '.join(self.info.splits)}")
        file = _local_file(self.path, split)
        rows = _hub_rows(self.path, split) if file is None else _file_rows(file)
        where = f"{self.path}, split {split}" if file is None else str(file)
        return (_task(f"{where}, row {i + 1}", f"gsm8k/{split}/{i}", row) for i, row in itertools.islice(rows, limit))

    async def score(self, rollout: Rollout) -> Mapping[str, float | None]:
        found = None if rollout.answer is None else number(rollout.answer)
        return {"accuracy": float(found is not None and found == number(rollout.task.answer[0]))}


def _task(where: str, id: str, row: Any) -> Task:
    try:
        question, solution = row["question"], row["answer"]
        _, separator, gold = solution.rpartition("####")
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{where}: needs the texts `question` and `answer`, found {row!r:.200}") from error
    gold = gold.strip().replace(",", "")
    if not separator or number(gold) is None:
        raise ConfigError(f"{where}: `answer` must end in #### and a number, found {solution[-60:]!r}")
    return Task(id=id, prompt=user_prompt(str(question)), answer=(gold,), data_source="gsm8k")


def _local_file(path: str, split: str) -> Path | None:
    """None: it is a name on the hub."""
    local = Path(path)
    if local.is_dir():
        return local / f"{split}.jsonl"
    return local if local.suffix == ".jsonl" or local.is_file() else None


def _file_rows(file: Path) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers from 0."""
    if not file.is_file():
        raise ConfigError(f"benchmarks.gsm8k.params.path: no file {str(file)!r}")
    for task in from_jsonl(file):
        yield int(task.id.rpartition("/")[2]), {"question": task.question, "answer": task.answer[0]}


def _hub_rows(name: str, split: str) -> Iterator[tuple[int, Any]]:
    """As `_file_rows`."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ConfigError(
            f"benchmarks.gsm8k.params.path is {name!r}, which is no local file or folder; to load it from the hub "
            "install `ramet-benchmarks[hub]`, else give the path of a .jsonl file or of a folder that holds "
            f"{split}.jsonl"
        ) from error
    try:
        rows = load_dataset(name, SUBSET, split=split)
    except Exception as error:  # whatever the hub, the network or the cache raises: the data is not there
        raise ConfigError(f"benchmarks.gsm8k.params.path: cannot load {name!r} from the hub: {error}") from error
    return enumerate(rows)
