"""Kinds of task as files: SFT traces, and task rows for training, validation and measuring.

Problems of SFT, RL, validation and measuring do not overlap. Problems of validation and measuring are the same for all
seeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

from ramet_benchmarks.branching import hops, sums
from ramet_benchmarks.branching.settings import TINY, TaskSetting


@dataclass(frozen=True, slots=True)
class Item:
    """Problem of a kind. `trace` writes a rollout of it, with this probability of the habit."""

    question: str
    answer: str
    trace: Callable[[float, Random], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """Kind of task. `tool` configures its tool. `habit`: how likely a phase of SFT that has it shows it, at each
    choice. `certain`: whether a tool result leaves nothing to choose, by its text and its number in the rollout, from
    1.
    """

    name: str
    setting: TaskSetting
    items: Callable[[], list[Item]]
    tool: str
    reward: str
    habit: float
    max_prompt_tokens: int
    max_response_tokens: int
    certain: Callable[[str, int], bool]


KINDS = {
    kind.name: kind
    for kind in (
        TaskKind(
            name="sums",
            setting=TINY,
            items=lambda: [Item(one.text, str(one.answer), partial(sums.trace, one)) for one in sums.problems()],
            tool="tools.python.use=bench_calculator",
            reward="math",
            habit=sums.HABIT,
            max_prompt_tokens=16,
            max_response_tokens=80,
            certain=lambda text, n: n >= 3,
        ),
        TaskKind(
            name="hops",
            setting=TINY,
            items=lambda: [Item(one.text, one.answer, partial(hops.trace, one)) for one in hops.questions()],
            tool="tools.search.use=bench_towns",
            reward="qa_f1",
            habit=hops.HABIT,
            max_prompt_tokens=16,
            max_response_tokens=80,
            certain=lambda text, n: len(text) != hops.FRIENDS,
        ),
    )
}


def write(kind: TaskKind, folder: Path, seed: int) -> None:
    """Write a file of traces for each phase of SFT, `train.jsonl`, `valid.jsonl` and `test.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    items, n = kind.items(), kind.setting
    test, valid, rest = items[: n.tested], items[n.tested : n.tested + n.validated], items[n.tested + n.validated :]
    Random(f"split:{seed}").shuffle(rest)
    _rows(folder / "test.jsonl", test)
    _rows(folder / "valid.jsonl", valid)
    _rows(folder / "train.jsonl", rest[: n.trained])
    random = Random(f"traces:{seed}")
    for phase in n.phases:
        habit = kind.habit if phase.habit else 0.0
        _traces(folder / f"{phase.name}.jsonl", rest[n.trained :], habit, phase.traces, random)


def _rows(path: Path, items: Iterable[Item]) -> None:
    rows = ({"prompt": one.question, "answer": one.answer} for one in items)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _traces(path: Path, items: Sequence[Item], habit: float, rows: int, random: Random) -> None:
    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            one = random.choice(items)
            turns = [{"from": "human", "value": one.question}, {"from": "gpt", "value": one.trace(habit, random)}]
            file.write(json.dumps({"conversations": turns}) + "\n")
