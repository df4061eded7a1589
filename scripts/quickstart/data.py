"""What both tasks write: problems as rows, and written traces for SFT. No problem is in both SFT and RL data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

from ramet import Task

Trace = Callable[[Task, Random], str]  # a written rollout of a task


def split(tasks: Sequence[Task], *, rl: int, seed: int) -> tuple[list[Task], list[Task]]:
    """Problems for SFT and for RL."""
    shuffled = list(tasks)
    Random(f"split:{seed}").shuffle(shuffled)
    return shuffled[rl:], shuffled[:rl]


def write_sft(path: Path, tasks: Sequence[Task], trace: Trace, *, rows: int, seed: int) -> None:
    """Sharegpt rows, one trace each, problems drawn with repetition."""
    random = Random(f"traces:{seed}")
    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            task = random.choice(tasks)
            conversation = [
                {"from": "human", "value": task.question},
                {"from": "gpt", "value": trace(task, random)},
            ]
            file.write(json.dumps({"conversations": conversation}) + "\n")


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Rows for `data.train`, and for the benchmark `files`."""
    with path.open("w", encoding="utf-8") as file:
        for task in tasks:
            row = {"prompt": task.question, "answer": task.answer[0], "data_source": task.data_source}
            file.write(json.dumps(row) + "\n")


def call(tool: str, text: str, result: str) -> str:
    """A tool call as the step `tags` writes it, with its result."""
    return f"<{tool}>{text}</{tool}> <result>\n{result}\n</result>"
