"""An ordinary program of the package `openai-agents`: it finds the boss of a person's boss, with a tool of its own.

Ramet trains it as it is: `rollout_step=function rollout_step.params.function=scripts/quickstart/openai_agent.py:run`.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from agents import Agent, Model, OpenAIChatCompletionsModel, Runner, Tool, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

CLIENT = AsyncOpenAI(api_key="set in each run")
set_tracing_disabled(True)


async def find(question: str, model: Model, tools: list[Tool]) -> str:
    finder = Agent(name="finder", model=model, tools=tools)
    return str((await Runner.run(finder, question, max_turns=4)).final_output)


@cache
def search_in(file: str) -> Tool:
    pages: dict[str, str] = json.loads(Path(file).read_text(encoding="utf-8"))

    @function_tool
    def search(name: str) -> str:
        """Find the page of a person."""
        return pages.get(name, "no page")

    return search


async def run(task: Any, ctx: Any, pages: str) -> str:
    """The entry point for Ramet: the client gets the address and the key of this rollout."""
    client = CLIENT.with_options(base_url=ctx.base_url, api_key=ctx.key)
    return await find(task.question, OpenAIChatCompletionsModel(ctx.model, client), [search_in(pages)])
