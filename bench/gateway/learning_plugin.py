"""A plugin for this bench, loaded by `RAMET_PLUGINS`: the tool of the agent quickstart as a tool of Ramet's."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ramet import Register, Tool, ToolCall, ToolResult, ToolSchema, hookimpl

ramet_contract = "1"


@dataclass(kw_only=True)
class LookUpConfig:
    """Options of `look_up`."""

    pages: str = ""  # file with the text of each page, by name


class LookUp:
    """Finds the page of a person; `tools.search.use=look_up` is the tool `search`."""

    schema = ToolSchema(
        name="look_up",
        description="Find the page of a person.",
        parameters={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
    )

    def __init__(self, config: LookUpConfig) -> None:
        self.pages = read(config.pages)

    async def __call__(self, call: ToolCall) -> ToolResult:
        return ToolResult(text=self.pages.get(str(call.arguments["name"]), "no page"))


@cache
def read(file: str) -> dict[str, str]:
    return dict(json.loads(Path(file).read_text(encoding="utf-8"))) if file else {}


@hookimpl
def register_tools(register: Register[Tool]) -> None:
    register("look_up", LookUp, config=LookUpConfig)
