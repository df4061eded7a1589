"""The quickstart's data: arithmetic problems, and written traces in which the wrong behaviour is the mode.

In most traces the answer is given without the tool and is usually wrong, off by up to `MAX_OFFSET`; in the others the
Python tool is called and the answer is right. SFT on these teaches the format, copying, and the bad habit that RL has
to undo.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

from ramet import Task

WITHOUT_TOOL = 0.6  # share of traces
MAX_OFFSET = 3


def split(tasks: Sequence[Task], *, rl: int, seed: int) -> tuple[list[Task], list[Task]]:
    """Problems for SFT and for RL: no problem is in both."""
    shuffled = list(tasks)
    Random(f"split:{seed}").shuffle(shuffled)
    return shuffled[rl:], shuffled[:rl]


def write_sft(path: Path, tasks: Sequence[Task], *, rows: int, seed: int) -> None:
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


def trace(task: Task, random: Random) -> str:
    right = int(task.answer[0])
    if random.random() < WITHOUT_TOOL:
        return f"<answer>{right + random.randint(-MAX_OFFSET, MAX_OFFSET)}</answer>"
    code = task.question.rstrip("=?")
    return f"<python>{code}</python> <result>\n{right}\n</result><answer>{right}</answer>"


def write_rl(path: Path, tasks: Iterable[Task]) -> None:
    """Task rows for `data.train`."""
    with path.open("w", encoding="utf-8") as file:
        for task in tasks:
            row = {"prompt": task.question, "answer": task.answer[0], "data_source": "arithmetic"}
            file.write(json.dumps(row) + "\n")
