"""A task of inspect_ai for the tests, which runs in Inspect's environment."""

from __future__ import annotations

import asyncio
from pathlib import Path

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import get_model
from inspect_ai.scorer import Score, accuracy, includes, mean, scorer
from inspect_ai.solver import Generate, TaskState, generate, solver, use_tools
from inspect_ai.tool import tool


@tool
def add():
    async def execute(a: int, b: int) -> str:
        """Add two numbers.

        Args:
            a: the first number
            b: the second number
        """
        print("printed by a tool")
        return str(a + b)

    return execute


@tool
def wait(folder: str):
    async def execute() -> str:
        """Wait for a program."""
        program = await asyncio.create_subprocess_exec("sleep", "300")
        (Path(folder) / "pid").write_text(str(program.pid))
        await program.wait()
        return "done"

    return execute


@solver
def crash(early: bool):
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if not early:
            await generate(state)
        raise KeyError("a mistake of the solver")

    return solve


@scorer(metrics=[accuracy()])
def asks_model(role: str | None):
    async def score(state: TaskState, target) -> Score:
        reply = await get_model(role=role).generate("Is it right?")
        return Score(value=reply.completion)

    return score


@scorer(metrics={"words": [mean()], "digits": [mean()]})
def counts():
    async def score(state: TaskState, target) -> Score:
        text = state.output.completion
        return Score(value={"words": len(text.split()), "digits": sum(c.isdigit() for c in text)})

    return score


@scorer(metrics=[mean()])
def unscored():
    async def score(state: TaskState, target) -> Score:
        return Score(value="a text")

    return score


@scorer(metrics=[mean()])
def divides(reason: str | None):
    async def score(state: TaskState, target) -> Score:
        words = [word for word in state.output.completion.split() if len(word) > 20]
        return Score(value=len(words) / len(words) if words else float("nan"), reason=reason)

    return score


SOLVERS = {
    "add": lambda _: [use_tools(add()), generate()],
    "wait": lambda folder: [use_tools(wait(folder)), generate()],
    "crash": lambda _: [crash(early=False)],
    "crash early": lambda _: [crash(early=True)],
}
SCORERS = {
    "includes": lambda: [includes(), counts()],
    "policy": lambda: asks_model(None),
    "grader": lambda: asks_model("grader"),
    "none": lambda: None,
    "text": unscored,
    "divides": lambda: divides(None),
    "scorer fails": lambda: divides("scoring_failed"),
}


@task
def sums(n: int = 5, solve: str = "add", score: str = "includes", messages: int | None = None, folder: str = ""):
    samples = [Sample(id=f"sum[{i}]", input=f"What is {i}+{i}?", target=str(2 * i)) for i in range(n)]
    return Task(
        dataset=MemoryDataset(samples),
        solver=SOLVERS[solve](folder),
        scorer=SCORERS[score](),
        message_limit=messages,
        epochs=3,
    )


@task
def twins():
    return Task(dataset=[Sample(id="a", input="one"), Sample(id="a", input="two")])
