"""Tools of the tasks `hops` and `sums`, which answer from this process: `bench_towns` and `bench_calculator`."""

from __future__ import annotations

import re

from ramet import ToolCall, ToolError, ToolResult, ToolSchema
from ramet.plugins import load_plugins
from ramet_benchmarks.branching.hops import town

NUMBER = r"(0|[1-9]\d{0,3})"


class BenchTowns:
    """Looks up a name or a page of the town that the question names; `tools.search.use` makes it the tool `search`."""

    schema = ToolSchema(
        name="bench_towns",
        description="Looks up a name or a page.",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    )

    async def __call__(self, call: ToolCall) -> ToolResult:
        if call.task is None:
            raise ToolError("bench_towns needs the task, whose question names the town")
        return ToolResult(text=town(int(call.task.question[:3])).look_up(str(call.arguments["text"]).strip()))


class BenchCalculator:
    """Calculates sums and products of whole numbers; `tools.python.use` makes it the tool `python`."""

    schema = ToolSchema(
        name="bench_calculator",
        description="Calculates.",
        parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    )

    async def __call__(self, call: ToolCall) -> ToolResult:
        code = str(call.arguments["code"]).strip()
        if not re.fullmatch(rf"{NUMBER}([-+*]{NUMBER}){{0,4}}", code):
            raise ToolError("SyntaxError: invalid syntax")
        return ToolResult(text=str(eval(code)))  # only numbers and signs


def give_tools() -> None:
    """Register the tools in this process only: no list of installed tools has them."""
    for tool in (BenchTowns(), BenchCalculator()):
        load_plugins().give("tools", tool.schema.name, tool)
