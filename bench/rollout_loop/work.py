"""The work that both loops do: the tasks, what the fake engine says, and what the tools return and how long they take.

A rollout makes `calls` tool calls and then answers. Whether a call is slow or fails is a matter of (task, member, turn)
alone, so every loop meets the same slow and failing calls.
"""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import dataclass
from random import Random

from words import END, train_tokenizer

from ramet import Task, ToolCall, ToolResult, ToolSchema, user_prompt
from ramet.models.encoder import Encoder

CALL = "<think>\nI should look up what is known about this.\n</think>\n<search>capital of the country</search>"
ANSWER = "<think>\nThe result says it.\n</think>\n<answer>The answer is 42.</answer>"
QUESTION = "Question number {}: what is the capital of the country?"
RESULT = "result for capital of the country"
SYSTEM = (
    "Solve the task step by step. Write your reasoning between <think> and </think>. You can use the tools below while "
    "you work. To call one, write its input between its tags; you then get what it returned between <result> and "
    "</result>, and go on from there.\n- <search>query</search>: Searches the web.\nWhen you know the answer, write it "
    "between <answer> and </answer>."
)
LOGPROB = -0.125


class ToolFailedError(RuntimeError):
    """What a failing tool raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many rollouts, and how their tools behave. Latencies in seconds."""

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

    def latency_of(self, task: int, member: int, turn: int) -> float:
        slow = Random(f"slow {task} {member} {turn}").random() < self.slow_share
        return self.latency_s * (self.slow_factor if slow else 1.0)

    def fails(self, task: int, member: int, turn: int, attempt: int) -> bool:
        """Every attempt has its own luck, as with a service that is overloaded."""
        return Random(f"fail {task} {member} {turn} {attempt}").random() < self.fail_share

    async def tool(self, task: int, member: int, turn: int, attempt: int) -> str:
        """What a call does: wait, then return or raise."""
        await asyncio.sleep(self._latencies[task, member, turn])
        if (task, member, turn, attempt) in self._failing:
            raise ToolFailedError("the service is overloaded")
        return RESULT


@dataclass(frozen=True, slots=True)
class Said:
    """One turn of the fake engine."""

    text: str
    ids: array[int]
    logprobs: array[float]


class Parts:
    """Tokenizer, tasks and canned turns, made once."""

    def __init__(self) -> None:
        questions = [QUESTION.format(i) for i in range(200)]
        self.tokenizer = train_tokenizer([SYSTEM, CALL, ANSWER, RESULT] * 20 + questions)
        self.encoder = Encoder(self.tokenizer)
        self.call = self._said(CALL)
        self.answer = self._said(ANSWER)

    def _said(self, text: str) -> Said:
        ids = self.encoder.markup(text)
        return Said(text, ids, array("f", [LOGPROB] * len(ids)))

    def said(self, turn: int, calls: int) -> Said:
        return self.call if turn < calls else self.answer
