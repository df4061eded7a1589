"""A plugin for this bench, loaded by `RAMET_PLUGINS`: the search tool of `hops`."""

from __future__ import annotations

from hops import town

from ramet import Register, Tool, ToolCall, ToolError, ToolResult, ToolSchema, hookimpl

ramet_contract = "1"


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


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("towns", Towns)
