"""Generated tasks with a planted truth: a policy of known probabilities, and calls that change the chance of success.

A task has 3 to 5 calls, each one of four letters. Turn t's letter is drawn with the probabilities `policy[t]`, and adds
`weights[t]` of it to a sum; the answer is right with the probability sigmoid(bias + sum). In a `pivot` task one turn
weighs four times as much as the others; in a `spread` task all weigh about the same. So the value of every beginning,
and what each call is worth, follow by enumeration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random

from ramet.types import Task, user_prompt

LETTERS = "abcd"
KINDS = ("pivot", "spread")
SMALL, LARGE, EVEN = 0.75, 3.0, 1.0  # standard deviations of weights


@dataclass(frozen=True, kw_only=True)
class PlantedTask:
    """`pivot`: the turn that decides; None in a `spread` task."""

    id: str
    bias: float
    policy: tuple[tuple[float, ...], ...]  # [turns][letters]
    weights: tuple[tuple[float, ...], ...]  # the same
    pivot: int | None

    @property
    def turns(self) -> int:
        return len(self.policy)

    @property
    def task(self) -> Task:
        return Task(id=self.id, prompt=user_prompt(self.id), answer=("yes",))

    def success(self, letters: str) -> float:
        """Return the probability of a right answer after all calls."""
        total = self.bias + sum(self.weights[turn][LETTERS.index(letter)] for turn, letter in enumerate(letters))
        return 1 / (1 + math.exp(-total))

    def value(self, letters: str) -> float:
        """Return the value of a beginning with these calls."""
        return self._values[letters]

    def worth(self, letters: str) -> list[float]:
        """Return what each of these calls was worth."""
        return [self.value(letters[: turn + 1]) - self.value(letters[:turn]) for turn in range(len(letters))]

    def entropy(self, turn: int) -> float:
        """Of the choice of a turn, in nats."""
        return -sum(p * math.log(p) for p in self.policy[turn])

    @cached_property
    def _values(self) -> dict[str, float]:
        values: dict[str, float] = {}

        def fill(letters: str) -> float:
            if len(letters) == self.turns:
                values[letters] = self.success(letters)
            else:
                chances = zip(LETTERS, self.policy[len(letters)], strict=True)
                values[letters] = sum(p * fill(letters + letter) for letter, p in chances)
            return values[letters]

        fill("")
        return values


def make_tasks(kind: str, n: int, seed: int) -> list[PlantedTask]:
    """Return the same tasks for the same arguments."""
    return [_make(f"{kind}-{i}", kind, Random(f"{kind} {i} {seed}")) for i in range(n)]


def _make(id: str, kind: str, rng: Random) -> PlantedTask:
    turns = rng.randint(3, 5)
    pivot = rng.randrange(turns) if kind == "pivot" else None
    sizes = [EVEN if pivot is None else LARGE if turn == pivot else SMALL for turn in range(turns)]
    return PlantedTask(
        id=id,
        bias=rng.gauss(0, 0.5),
        policy=tuple(_softmax([rng.gauss(0, 0.7) for _ in LETTERS]) for _ in range(turns)),
        weights=tuple(tuple(rng.gauss(0, size) for _ in LETTERS) for size in sizes),
        pivot=pivot,
    )


def _softmax(logits: Sequence[float]) -> tuple[float, ...]:
    total = sum(map(math.exp, logits))
    return tuple(math.exp(logit) / total for logit in logits)
