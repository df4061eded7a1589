"""The task of both sides: one question, one tool call, one answer, with the same number of tokens in each part.

Each side has it in its own format. Filling words make the shorter text as long as the other. A rollout begins with a
number that the model draws, so those of a group differ from there on. Standard library only.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

N_QUESTIONS = 64
GROUP_SIZE = 8
TASKS = 4  # questions a step: 32 rollouts
DRAWS = 16  # numbers per question in the examples; what a fitted model draws is any of three digits
FILL = " so"  # one token
LEARNING_RATE = 1e-9  # the optimiser steps, and the weights stay what they were fitted to be
MAX_COMPLETION = 192


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of each part of a rollout, or filling words in it."""

    prompt: int = 0
    call: int = 0
    result: int = 0
    answer: int = 0

    def __sub__(self, other: Lengths) -> Lengths:
        mine, theirs = asdict(self), asdict(other)
        return Lengths(**{part: mine[part] - theirs[part] for part in mine})

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Lengths:
        return cls(**json.loads(path.read_text(encoding="utf-8")))


def longest(one: Lengths, other: Lengths) -> Lengths:
    mine, theirs = asdict(one), asdict(other)
    return Lengths(**{part: max(mine[part], theirs[part]) for part in mine})


def question(number: int, fill: int) -> str:
    return f"Question number {number:03}: what is the capital?{FILL * fill}"


def drawn() -> Iterator[tuple[int, str]]:
    """Each question with some numbers: a digit is a token."""
    rng = random.Random(0)
    for question_number in range(N_QUESTIONS):
        for _ in range(DRAWS):
            yield question_number, f"{rng.randrange(1000):03}"


@dataclass(frozen=True, slots=True)
class Example:
    """One rollout's token ids, part by part."""

    prompt: list[int]
    call: list[int]
    result: list[int]
    answer: list[int]

    @property
    def lengths(self) -> Lengths:
        return Lengths(len(self.prompt), len(self.call), len(self.result), len(self.answer))
