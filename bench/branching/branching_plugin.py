"""A plugin for this bench, loaded by `RAMET_PLUGINS`: the search of `people`."""

from __future__ import annotations

from people import page

from ramet import Register, Tool, ToolCall, ToolResult, ToolSchema, hookimpl

ramet_contract = "1"


class People:
    """Looks up the page of a person; `tools.search.use=people` is the tool `search`."""

    schema = ToolSchema(
        name="people",
        description="Looks up the page of a person.",
        parameters={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    )

    async def __call__(self, call: ToolCall) -> ToolResult:
        return ToolResult(text=page(str(call.arguments["name"]).strip()))


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("people", People)
