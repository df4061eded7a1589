"""The work that all loops do: the tasks, what the fake engine answers, and how long tools take and when they fail.

A rollout makes `calls` tool calls and then answers. Whether a call is slow or fails is drawn per (task, member, turn)
before the clock starts, so every loop has the same slow and failing calls.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import TypeAlias

from words import train_tokenizer

from ramet.models.encoder import Encoder

SYSTEM = (
    "Solve the task step by step. Write your reasoning between <think> and </think>. You can use the tools below while "
    "you work. To call one, write its input between its tags; you then get what it returned between <result> and "
    "</result>, and go on from there.\n- <search>query</search>: Searches the web.\nWhen you know the answer, write it "
    "between <answer> and </answer>."
)
QUESTION = "Question number {}: what is the capital of the country?"
CALL = "<think>\nI should look up what is known about this.\n</think>\n<search>capital of the country</search>"
ANSWER = "<think>\nThe result says it.\n</think>\n<answer>The answer is 42.</answer>"
RESULT = "result {}.{}.{} for capital of the country"
LOGPROB, ENTROPY = -0.125, 0.5
ATTEMPTS = 8  # of one call whose luck is drawn

Call: TypeAlias = tuple[int, int, int]  # task, member of its group, turn


class ToolFailedError(RuntimeError):
    """What a failing tool raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many rollouts, and how their tools behave."""

    rollouts: int
    group_size: int = 8
    calls: int = 1
    latency_s: float = 0.2
    slow_share: float = 0.0
    slow_factor: float = 20.0
    fail_share: float = 0.0

    @property
    def n_tasks(self) -> int:
        return self.rollouts // self.group_size

    def all_calls(self) -> Iterator[Call]:
        return product(range(self.n_tasks), range(self.group_size), range(self.calls))


class Tools:
    """The one tool. Every attempt has its own luck, as with a service that is overloaded."""

    def __init__(self, load: Load, seed: int) -> None:
        rng = Random(seed)
        self.n_runs = 0
        self._latency: dict[Call, float] = {}
        self._fails: dict[Call, list[bool]] = {}
        self._attempts: Counter[Call] = Counter()
        for call in load.all_calls():
            slow = rng.random() < load.slow_share
            self._latency[call] = load.latency_s * (load.slow_factor if slow else 1.0)
            self._fails[call] = [rng.random() < load.fail_share for _ in range(ATTEMPTS)]

    async def run(self, task: int, member: int, turn: int) -> str:
        call = task, member, turn
        attempt, self._attempts[call] = self._attempts[call], self._attempts[call] + 1
        self.n_runs += 1
        await asyncio.sleep(self._latency[call])
        if self._fails[call][attempt]:
            raise ToolFailedError("the service is overloaded")
        return RESULT.format(*call)


@dataclass(frozen=True, slots=True)
class CannedTurn:
    """One turn of the fake engine."""

    ids: array[int]
    logprobs: array[float]
    entropies: array[float]


class Fixture:
    """Tokenizer, encoder and canned turns, made once."""

    def __init__(self) -> None:
        questions = [QUESTION.format(i) for i in range(200)]
        self.tokenizer = train_tokenizer([SYSTEM, CALL, ANSWER, RESULT] * 20 + questions)
        self.encoder = Encoder(self.tokenizer)
        self._call, self._answer = self._canned(CALL), self._canned(ANSWER)

    def turn(self, turn: int, calls: int) -> CannedTurn:
        return self._call if turn < calls else self._answer

    def _canned(self, text: str) -> CannedTurn:
        ids = self.encoder.markup(text)
        return CannedTurn(ids, array("f", [LOGPROB] * len(ids)), array("f", [ENTROPY] * len(ids)))


@dataclass(slots=True)
class Played:
    """One rollout as a trainer needs it. The loops' results are compared field by field."""

    prompt: array[int]
    ids: array[int]
    mask: array[int]
    logprobs: array[float]
    lost: bool = False  # its tool failed for good


def difference(mine: list[Played], others: list[Played]) -> str | None:
    """What is not equal in two loops' rollouts; lost ones have only their loss to compare."""
    if len(mine) != len(others):
        return f"{len(mine)} and {len(others)} rollouts"
    for i, (one, other) in enumerate(zip(mine, others, strict=True)):
        if one.lost != other.lost or (not one.lost and one != other):
            return f"rollout {i} differs"
    return None
