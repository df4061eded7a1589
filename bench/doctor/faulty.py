"""The mistakes that runs are planted with, as a plugin: a search that fails or is slow, rewards that judge wrongly."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ramet import (
    InfraError,
    Register,
    Reward,
    Rollout,
    Tool,
    ToolCall,
    ToolError,
    ToolResult,
    ToolSchema,
    hookimpl,
    option,
)
from ramet_tools_bing.results import SearchItem, default

ramet_contract = "1"


def drawn(text: str, share: float) -> bool:
    """Whether a text is among this share of all texts; always the same ones."""
    return zlib.crc32(text.encode()) % 1000 < 1000 * share


@dataclass(kw_only=True, slots=True)
class SearchConfig:
    """A search of the quickstart's people that goes wrong for a share of the names."""

    corpus: str = option("", "corpus.jsonl of the quickstart")
    fails: float = option(0.0, "share of the names for which it fails")
    returns: bool = option(False, "a failure is returned as if it were a result")
    masks: bool = option(False, "a failure masks the rollout; false: it is the model's mistake")
    slow: float = option(0.0, "share of the names for which it is slow")
    slow_s: float = 0.0


class FaultySearch:
    schema = ToolSchema(
        name="faulty_search",
        description="Search for a person.",
        parameters={"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    )

    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        rows = map(json.loads, Path(config.corpus).read_text(encoding="utf-8").splitlines())
        self.texts = {row["title"]: row["text"] for row in rows}

    async def __call__(self, call: ToolCall) -> ToolResult:
        name, config = str(call.arguments["query"]).strip(), self.config
        if drawn(name, config.slow):
            await asyncio.sleep(config.slow_s)
        if drawn(name, config.fails):
            if config.returns:
                return ToolResult(text="Error: 502")
            raise InfraError("the index is being rebuilt") if config.masks else ToolError("KeyError: 'hits'")
        text = self.texts.get(name, "no such person")
        return ToolResult(text=default([SearchItem(title=name, text=text)], 1, len(text)))


Score = Callable[[Rollout], float]


class Scored:
    """A reward of one rollout by a function."""

    per_rollout = True

    def __init__(self, score: Score, *, sleep_s: float = 0.0) -> None:
        self.score, self.sleep_s = score, sleep_s

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        await asyncio.sleep(self.sleep_s)
        return [self.score(rollout) for rollout in group]


def right(rollout: Rollout) -> float:
    return float(rollout.answer == rollout.task.answer[0])


def wrong_field(rollout: Rollout) -> float:
    """Compare with the question instead of the gold."""
    return float(rollout.answer == rollout.task.question)


def strict(rollout: Rollout) -> float:
    """Ask for a full stop that no answer has, of names with an A in them."""
    gold = rollout.task.answer[0]
    return float(rollout.answer == (f"{gold}." if "A" in gold else gold))


def constant(rollout: Rollout) -> float:
    return 1.0


def fails_often(rollout: Rollout) -> float:
    if drawn(rollout.task.question, 0.5):
        raise RuntimeError("judge: connection reset")
    return right(rollout)


def fails_sometimes(rollout: Rollout) -> float:
    if drawn(rollout.task.question, 0.12):
        raise RuntimeError("judge: connection reset")
    return right(rollout)


def few_calls(rollout: Rollout) -> float:
    """Pay for answers that take few calls, right or wrong."""
    return 1.0 - min(3, len(rollout.tool_calls)) / 3 if rollout.answer else 0.0


def many_calls(rollout: Rollout) -> float:
    """Pay for calls, and for nothing else."""
    return min(3, len(rollout.tool_calls)) / 3


SCORES = (right, wrong_field, strict, constant, fails_often, fails_sometimes, few_calls, many_calls)


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("faulty_search", FaultySearch, config=SearchConfig)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    for score in SCORES:
        register(score.__name__, partial(Scored, score))
    register("slow_judge", partial(Scored, right, sleep_s=1.0))
    register("very_slow_judge", partial(Scored, right, sleep_s=4.0))
