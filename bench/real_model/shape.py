"""What all sides do in a step, and how they are driven: one line in, one line out. Standard library only."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Self

PREFIX = "BENCH "  # of a side's messages; what else it prints is ignored
RESULT = "The counter shows 318 seeds."  # of the tool
RESULT_TOKENS = 32  # room for it and what the chat template puts around it
LEARNING_RATE = 1e-6
N_QUESTIONS = 400  # a step takes others than the step before, so no side has a prompt in its cache
QUESTION = (
    "A farm has {} boxes with {} seeds each. In spring it gives {} seeds to the school and sells {} seeds at the "
    "market in town. The school plants its seeds in rows of {}, and a row that is not full is left for the next year. "
    "In summer the farm buys {} boxes more, with as many seeds in each as before. How many seeds does the farm have "
    "then, and how many full rows does the school plant? Work it out step by step, check every step, and write the "
    "two numbers at the end."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of one side's process."""

    side: str
    model: str  # a folder
    work: str  # a folder for what the side writes
    precision: str
    threads: int
    questions: int
    rollouts: int  # of each question
    tokens: int  # that each rollout samples; with a tool call half of them before it

    @classmethod
    def read(cls) -> Self:
        return cls(**json.loads(sys.argv[1]))

    def text(self) -> str:
        return json.dumps(asdict(self))

    def turn_tokens(self, turn: int, *, calls: bool) -> int:
        """Tokens that a rollout samples in this turn, counted from 0."""
        half = self.tokens // 2
        return self.tokens if not calls else (half, self.tokens - half)[min(turn, 1)]


def question(number: int) -> str:
    """A word problem. All have as many tokens: the tokenizer splits numbers into digits, and all have three."""
    return QUESTION.format(*(100 + (number * step + 7 * step) % 900 for step in (1, 7, 11, 13, 17, 19)))


@dataclass(slots=True)
class Barrier:
    """Blocks a side between two steps. `tool_s`: seconds of the tool call in the current step; None: no call."""

    tool_s: float | None = None
    calls: int = 0
    _started: float = field(default=0.0)

    def wait(self) -> None:
        """Until the next step is requested; the clock starts then. Ends the process at the end of the input."""
        line = sys.stdin.readline()
        if not line.strip():
            os._exit(0)  # trainers have no other way out between two steps
        self.tool_s, self.calls = json.loads(line)["tool_s"], 0
        self._started = time.perf_counter()

    def elapsed(self) -> float:
        return time.perf_counter() - self._started

    def report(self, wall_s: float, work: dict[str, int], **more: Any) -> None:
        send({"wall_s": wall_s, "work": work | {"tool_calls": self.calls}, **more})


def send(content: dict[str, Any]) -> None:
    print(PREFIX + json.dumps(content), flush=True)
