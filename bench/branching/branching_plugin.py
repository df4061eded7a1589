"""A plugin for this bench, loaded by `RAMET_PLUGINS`: search in `hops` and `people`, and the calculator of `sums`."""

from __future__ import annotations

import re

from hops import town
from people import page

from ramet import Register, Tool, ToolCall, ToolError, ToolResult, ToolSchema, hookimpl

ramet_contract = "1"
NUMBER = r"(0|[1-9]\d{0,3})"


class Towns:
    """Looks up a name or a page of the town that the question names; `tools.search.use=towns` is the tool `search`."""

    schema = ToolSchema(
        name="towns",
        description="Looks up a name or a page.",
        parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    )

    async def __call__(self, call: ToolCall) -> ToolResult:
        if call.task is None:
            raise ToolError("towns needs the task, whose question names the town")
        return ToolResult(text=town(int(call.task.question[:3])).look_up(str(call.arguments["text"]).strip()))


class People:
    """Looks up the page of a person; `tools.search.use=people` is the tool `search`."""

    schema = ToolSchema(
        name="people",
        description="Looks up the page of a person.",
        parameters={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    )

    async def __call__(self, call: ToolCall) -> ToolResult:
        return ToolResult(text=page(str(call.arguments["name"]).strip()))


class Calculator:
    """Sums and products of whole numbers, as the Python tool gives them, within this process.

    `tools.python.use=calculator` is the tool `python`.
    """

    schema = ToolSchema(
        name="calculator",
        description="Calculates.",
        parameters={"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    )

    async def __call__(self, call: ToolCall) -> ToolResult:
        code = str(call.arguments["code"]).strip()
        if not re.fullmatch(rf"{NUMBER}([-+*]{NUMBER}){{0,4}}", code):
            raise ToolError("SyntaxError: invalid syntax")
        return ToolResult(text=str(eval(code)))  # numbers and signs alone


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("towns", Towns)
    register("people", People)
    register("calculator", Calculator)
