"""Tools and rewards of the second set of planted faults; RAMET_PLUGINS=second_plugin."""

import asyncio
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from ramet import InfraError, Register, Reward, Rollout, Tool, function_tool, hookimpl, per_rollout

ramet_contract = "1"

CORPUS = Path(os.environ["SECOND_CORPUS"])


def pages(most: int | None = None) -> dict[str, str]:
    lines = CORPUS.read_text().splitlines()[:most]
    return {page["title"]: page["text"] for page in map(json.loads, lines)}


def half_index() -> Tool:
    index = pages(1000)  # the fault: an index of the first of two files

    def search(query: str) -> str:
        """Look a person up."""
        return f"[1] {query}\n{index[query]}"

    return function_tool(search)


def straggling() -> Tool:
    index = pages()

    async def search(query: str) -> str:
        """Look a person up."""
        if zlib.crc32(query.encode()) % 100 < 6:  # the fault: a few pages lie on a slow disk
            await asyncio.sleep(6.0)
        return f"[1] {query}\n{index.get(query, 'nothing')}"

    return function_tool(search)


def trailing_zeros(rollout: Rollout) -> float:
    # The fault: "12.50" should equal "12.5", so zeros are stripped from the answer, though not from the gold one.
    return float((rollout.answer or "").strip().rstrip("0") in rollout.task.answer)


class Overloaded:
    """Asks a scoring service that refuses six of ten groups."""

    per_rollout = False

    async def __call__(self, group: Sequence[Rollout]) -> Sequence[float]:
        if zlib.crc32(str(group[0].task.prompt).encode()) % 10 < 6:
            raise InfraError("scoring service: 429 too many requests")
        return [float(one.answer in one.task.answer) for one in group]


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("half_index", half_index)
    register("straggling", straggling)


@hookimpl
def register_rewards(register: Register[Reward]) -> None:
    register("zeros", lambda: per_rollout(trailing_zeros))
    register("remote_score", Overloaded)
